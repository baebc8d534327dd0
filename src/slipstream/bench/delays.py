"""Delays put into one part of a cycle on purpose, to see whether a profile says where they are."""

import time
from dataclasses import dataclass, fields
from typing import Any

import torch

from slipstream.parallel.instrument import open_wire

MOST_MS = 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Milliseconds of rank 0: of its device in extend, each draft step and verify, of its host once a cycle."""

    extend: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    host: float = 0.0


NO_DELAYS = Delays()


def parse_delays(text: str | None) -> Delays:
    """Read `draft=5,host=2`.

    Raises:
        ValueError: a stage that cannot be delayed, or no number of milliseconds.
    """
    names = [field.name for field in fields(Delays)]
    given: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.strip().partition("=")
        if name not in names:
            raise ValueError(f"--inject {part.strip()}: choose {', '.join(names)}, for example draft=5,host=2")
        try:
            given[name] = float(value)
        except ValueError:
            raise ValueError(f"--inject {part.strip()}: give milliseconds, for example {name}=5") from None
        if not 0 <= given[name] <= MOST_MS:
            raise ValueError(f"--inject {part.strip()}: milliseconds lie between 0 and {MOST_MS:.0f}")
    return Delays(**given)


class Brake:
    """Holds a device up; on a GPU by a kernel that spins, which a graph captures and replays."""

    def __init__(self, device: torch.device, delays: Delays) -> None:
        self.delays, self._on_gpu = delays, device.type == "cuda"
        wanted = self._on_gpu and delays != NO_DELAYS
        self._cycles_per_ms = open_wire(device).cycles_per_us * 1e3 if wanted else 0.0

    def hold(self, milliseconds: float) -> None:
        """Keep the device busy."""
        if milliseconds <= 0:
            return
        if self._on_gpu:
            torch.cuda._sleep(round(milliseconds * self._cycles_per_ms))
            return
        _spin(milliseconds)

    def hold_host(self) -> None:
        """Keep the host busy."""
        _spin(self.delays.host)

    def before(self, milliseconds: float) -> Any:
        """A hook that holds the device up before a module runs."""
        return lambda *_: self.hold(milliseconds)


def _spin(milliseconds: float) -> None:
    """Busy, as the work would be: one that sleeps is woken before others, and runs unlike the rest of its cycle."""
    until = time.perf_counter() + milliseconds / 1e3
    while time.perf_counter() < until:
        pass
