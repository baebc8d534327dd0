"""A cycle as it is served, beside the recorded ones that run one by one: what of the host is hidden. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from slipstream.bench.profile import Profiled, ProfilePlan
from slipstream.bench.profile_sums import StageRow
from slipstream.bench.spans import HOST

SERVED, RECORDED = "served", "recorded"  # which cycles judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The profiled cycle, launched before the host has read the one before."""

    cycle_ms: float  # median
    bare_ms: float  # median of the same cycle, as little marked, run one by one
    device_ms: float  # all stages but the host's

    @property
    def hidden_ms(self) -> float:
        """The host's work that runs while the device does."""
        return max(0.0, self.bare_ms - self.cycle_ms)

    @property
    def idle_ms(self) -> float:
        """The device has nothing to do: what of the host is not hidden."""
        return max(0.0, self.cycle_ms - self.device_ms)

    @property
    def idle_share(self) -> float:
        """Of the cycle."""
        return self.idle_ms / self.cycle_ms


def served_cycle(plan: ProfilePlan, found: Profiled, rows: Sequence[StageRow]) -> Served | None:
    """None where nothing runs ahead: the recorded cycles are those that are served."""
    times = found.served.get(plan.main)
    if not times:
        return None
    device_ms = sum(row.ms for row in rows if row.label != HOST)
    return Served(cycle_ms=median(times), bare_ms=median(found.bare_ms), device_ms=device_ms)


def served_rows(rows: Sequence[StageRow], served: Served | None) -> list[StageRow]:
    """Stages of the cycle that judges: as recorded, but the host's has only what a served cycle still waits for."""
    if served is None:
        return list(rows)
    return [replace(row, ms=served.idle_ms) if row.label == HOST else row for row in rows]


def served_fields(served: Served | None) -> dict[str, str | float | None]:
    """Under their names."""
    return {
        "judging_cycles": RECORDED if served is None else SERVED,
        "served_cycle_ms": None if served is None else served.cycle_ms,
        "host_hidden_ms": None if served is None else served.hidden_ms,
        "device_idle_share": None if served is None else served.idle_share,
    }
