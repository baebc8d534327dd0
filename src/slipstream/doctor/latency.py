"""All-reduce latency under one setting, measured in fresh processes that may hang without harm."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from slipstream.doctor.ranks import Ending, run_ranks

PROBE = ("-m", "slipstream.doctor.allreduce_probe")
DEFAULT = "NCCL"
SEEN_ERROR = 160  # characters of a rank's last words


class Health(Enum):
    """Whether a setting can be used."""

    OK = "ok"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"
    HUNG = "hung"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A way to all-reduce and the environment it runs in."""

    name: str
    path: str  # see allreduce_probe
    variable: str = ""  # what the user would set; empty: nothing, slipstream chooses by itself
    value: str = ""

    @property
    def line(self) -> str:
        """What to put into the environment."""
        return f"{self.variable}={self.value}" if self.variable else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """What a setting takes."""

    setting: Setting
    health: Health
    us: tuple[float, ...]  # at each size; empty unless ok
    reason: str


CUDA_SETTINGS = (
    Setting(name=DEFAULT, path="nccl"),
    Setting(name="NCCL LL", path="nccl", variable="NCCL_PROTO", value="LL"),
    Setting(name="NCCL LL128", path="nccl", variable="NCCL_PROTO", value="LL128"),
    Setting(name="NCCL Simple", path="nccl", variable="NCCL_PROTO", value="Simple"),
    Setting(name="one-shot", path="one-shot"),
    Setting(name="two-shot", path="two-shot"),
    Setting(name="push", path="push"),
)
CPU_SETTINGS = (Setting(name="gloo reduced", path="reduced"), Setting(name="gloo gathered", path="gathered"))


def probe(setting: Setting, *, device: str, tp: int, sizes: Sequence[int], timeout_s: float) -> Latency:
    """Measure one setting; NCCL_PROTO is taken away where the setting does not set it."""
    environment = {"NCCL_PROTO": None, **({setting.variable: setting.value} if setting.variable else {})}
    arguments = ("--device", device, "--path", setting.path, "--sizes", ",".join(map(str, sizes)))
    outcome = run_ranks((*PROBE, *arguments), size=tp, timeout_s=timeout_s, environment=environment)
    found = _printed(outcome.output)  # rank 0 prints when all are done measuring, however they end afterwards
    if found is not None and found["reason"]:
        return _without(setting, Health.UNAVAILABLE, found["reason"])
    if found is not None:
        return Latency(setting=setting, health=Health.OK, us=tuple(found["us"]), reason="")
    if outcome.ending is Ending.HUNG:
        return _without(setting, Health.HUNG, f"no end after {timeout_s:g} s")
    return _without(setting, Health.FAILED, outcome.error[:SEEN_ERROR] or "it ended without a result")


def _printed(output: str) -> dict[str, Any] | None:
    """The probe's line; libraries may have printed others."""
    lines = [line for line in output.splitlines() if line.startswith('{"us"')]
    return json.loads(lines[-1]) if lines else None


def _without(setting: Setting, health: Health, reason: str) -> Latency:
    return Latency(setting=setting, health=health, us=(), reason=reason)
