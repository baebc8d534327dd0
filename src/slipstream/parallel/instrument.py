"""A group that writes down its collectives and can make its wire slower, to see what communication costs.

A captured graph runs without Python: its collectives are written down once, when it is captured, and its delays are
replayed as captured.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from slipstream.kernels.mail import Mail
from slipstream.parallel.group import Group
from slipstream.parallel.timing import time_calls

CALIBRATION_CYCLES = (4_000, 40_000)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LedgerRow:
    """All collectives of one kind."""

    stage: str  # which part of a cycle: draft, verify, ...
    role: str  # whose group: target or draft
    op: str  # all_reduce, all_gather or broadcast
    name: str  # what the layer calls it
    count: int
    num_bytes: int  # of this rank's shares, all together


@dataclass(slots=True)
class Ledger:
    """Counts collectives in the order in which they were first seen."""

    _totals: dict[tuple[str, str, str, str], tuple[int, int]] = field(default_factory=dict)  # count and bytes

    def record(self, *, stage: str, role: str, op: str, name: str, num_bytes: int) -> None:
        """Write down one collective."""
        key = (stage, role, op, name)
        count, so_far = self._totals.get(key, (0, 0))
        self._totals[key] = (count + 1, so_far + num_bytes)

    def rows(self) -> tuple[LedgerRow, ...]:
        """One row for each (stage, role, op, name)."""
        return tuple(
            LedgerRow(stage=stage, role=role, op=op, name=name, count=count, num_bytes=num_bytes)
            for (stage, role, op, name), (count, num_bytes) in self._totals.items()
        )

    def clear(self) -> None:
        """Begin anew."""
        self._totals.clear()


class Watch(Protocol):
    """Who times collectives; told in the order in which this process queues them, also while a graph is captured."""

    def collective_begins(self) -> None:
        """One is about to be queued."""
        ...

    def collective_ends(self, *, role: str, op: str, name: str, num_bytes: int) -> None:
        """It has been queued, its delay too; num_bytes: of this rank's share."""
        ...


def no_stage() -> str:
    """The label of collectives outside a cycle."""
    return ""


@dataclass(slots=True, kw_only=True)
class Wire:
    """Settings that the instrumented groups of a process share; changed between runs, before a capture."""

    delay_us: float = 0.0  # added to every collective
    ledger: Ledger | None = None  # written to while set
    stage: Callable[[], str] = no_stage  # asked at each collective
    cycles_per_us: float = 0.0  # of the GPU's spinning kernel; 0 on a CPU, see open_wire
    launch_us: float = 0.0  # what that kernel takes without spinning
    watch: Watch | None = None  # told while set

    def wait(self, x: Tensor) -> None:
        """Keep whatever holds x busy for the delay: the GPU's stream, or this thread."""
        if self.delay_us <= 0:
            return
        if not x.is_cuda:
            _busy_wait(self.delay_us)
            return
        assert self.cycles_per_us > 0, "a wire on a GPU comes from open_wire, which measures its clock"
        torch.cuda._sleep(round(max(0.0, self.delay_us - self.launch_us) * self.cycles_per_us))


def open_wire(
    device: torch.device, *, delay_us: float = 0.0, ledger: Ledger | None = None, stage: Callable[[], str] = no_stage
) -> Wire:
    """Make a wire for a device; on a GPU this measures once, outside any capture, how fast its clock counts."""
    wire = Wire(delay_us=delay_us, ledger=ledger, stage=stage)
    if device.type == "cuda":
        with torch.cuda.device(device):
            wire.cycles_per_us, wire.launch_us = _calibrate(device)
    return wire


def _calibrate(device: torch.device) -> tuple[float, float]:
    few, many = CALIBRATION_CYCLES
    short_us, long_us = (time_calls(lambda cycles=cycles: torch.cuda._sleep(cycles), device) for cycles in (few, many))
    cycles_per_us = (many - few) / (long_us - short_us)
    return cycles_per_us, max(0.0, short_us - few / cycles_per_us)


def _busy_wait(us: float) -> None:
    until = time.perf_counter_ns() + round(us * 1e3)
    while time.perf_counter_ns() < until:
        pass


class InstrumentedGroup:
    """Another group, with a wire that can be watched and slowed. A SoloGroup is never wrapped: it has no wire."""

    def __init__(self, inner: Group, wire: Wire, role: str) -> None:
        self.rank, self.size = inner.rank, inner.size
        self._inner, self._wire, self._role = inner, wire, role

    def all_reduce(self, x: Tensor, name: str) -> Tensor:
        """The inner group's sum, noted and delayed."""
        with self._noted("all_reduce", x, name):
            total = self._inner.all_reduce(x, name)
            self._wire.wait(total)
        return total

    @contextmanager
    def mailing(self, x: Tensor, op: str, name: str) -> Iterator[Mail | None]:
        """The inner group's mailboxes; a kernel that uses them is noted and delayed as `op` is."""
        with self._inner.mailing(x, op, name) as mail:
            if mail is None:
                yield None
                return
            with self._noted(op, x, name):
                yield mail
                self._wire.wait(x)

    def all_gather(self, x: Tensor, name: str) -> Tensor:
        """The inner group's gather, noted and delayed."""
        with self._noted("all_gather", x, name):
            gathered = self._inner.all_gather(x, name)
            self._wire.wait(gathered)
        return gathered

    def broadcast(self, x: Tensor, name: str) -> Tensor:
        """The inner group's broadcast, noted and delayed."""
        with self._noted("broadcast", x, name):
            received = self._inner.broadcast(x, name)
            self._wire.wait(received)
        return received

    @contextmanager
    def _noted(self, op: str, x: Tensor, name: str) -> Iterator[None]:
        wire, num_bytes = self._wire, x.nbytes
        if wire.ledger is not None:
            wire.ledger.record(stage=wire.stage(), role=self._role, op=op, name=name, num_bytes=num_bytes)
        if wire.watch is None:
            yield
            return
        wire.watch.collective_begins()
        yield
        wire.watch.collective_ends(role=self._role, op=op, name=name, num_bytes=num_bytes)
