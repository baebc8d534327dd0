"""What a profile's times add up to: stages beside their floors, step(K), R and the break-even. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from slipstream.bench.profile import Profiled, ProfilePlan
from slipstream.bench.profile_counts import Count
from slipstream.bench.spans import ACCEPT, EXTEND, HOST, VERIFY, Call, CycleTimes, is_draft, step_label
from slipstream.bench.verify_curve import line
from slipstream.config.placement import Placement

P90 = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage of the profiled cycle."""

    label: str
    ms: float  # mean of the typical cycles
    median_ms: float  # of all cycles
    p90_ms: float  # of all cycles
    communication_ms: float  # mean of the typical cycles, of the collectives in it
    count: Count | None
    floor_ms: float | None  # bytes over the read rate

    @property
    def share_of_floor(self) -> float | None:
        """1 is as fast as the memory allows."""
        return None if self.floor_ms is None or self.ms <= 0 else self.floor_ms / self.ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """step(K) = a + b K."""

    a_ms: float
    b_ms: float
    points: tuple[tuple[int, float], ...]  # K and the median of its cycles

    def at(self, steps: float) -> float:
        """The fitted cycle."""
        return self.a_ms + self.b_ms * steps

    @property
    def residual_ms(self) -> float:
        """The largest distance of a point from the line."""
        return max(abs(ms - self.at(steps)) for steps, ms in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """All collectives of one kind in a stage."""

    label: str
    role: str
    op: str
    name: str
    count: float  # a cycle, mean
    num_bytes: float  # of one, this rank's share, mean
    us: float  # median of one
    p90_us: float
    ms: float  # of a cycle's, all together


def p90(values: Sequence[float]) -> float:
    """The 90th percentile, a value that was seen."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(P90 * len(ordered)))]


def typical(cycles: Sequence[CycleTimes]) -> list[CycleTimes]:
    """The middle half by wall time: whatever held up a whole cycle is left out, and the means of stages add up."""
    ordered = sorted(cycles, key=lambda cycle: cycle.wall_ms)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut]


def typical_ms(times: Sequence[float]) -> float:
    """Mean of the middle half."""
    cut = len(times) // 4
    return mean(sorted(times)[cut : len(times) - cut])


def wall_ms(cycles: Sequence[CycleTimes]) -> float:
    """Mean wall time of the typical cycles."""
    return typical_ms([cycle.wall_ms for cycle in cycles])


def stage_rows(plan: ProfilePlan, found: Profiled) -> list[StageRow]:
    """Every stage of the profiled cycle, in its order."""
    steps = [step_label(step) for step in range(1, plan.shape.steps + 1)]
    return [_stage_row(label, found, plan) for label in (EXTEND, *steps, VERIFY, ACCEPT, HOST)]


def _stage_row(label: str, found: Profiled, plan: ProfilePlan) -> StageRow:
    cycles = found.cycles[plan.main]
    count = found.counts.get(label)
    return StageRow(
        label=label,
        ms=mean(cycle.stage_ms(label) for cycle in typical(cycles)),
        median_ms=median(cycle.stage_ms(label) for cycle in cycles),
        p90_ms=p90([cycle.stage_ms(label) for cycle in cycles]),
        communication_ms=mean(cycle.communication_ms(label) for cycle in typical(found.watched)),
        count=count,
        floor_ms=None if count is None else count.num_bytes / found.read_bytes_per_s * 1e3,
    )


def curve_times(plan: ProfilePlan, found: Profiled) -> dict[int, list[float]]:
    """V(n): the verify stage of a cycle that verifies n tokens of one request, ms."""
    return {tokens: [cycle.stage_ms(VERIFY) for cycle in found.cycles[case]] for tokens, case in plan.curve().items()}


def fit_steps(plan: ProfilePlan, found: Profiled) -> Fit:
    """The line through the cycles of several numbers of steps."""
    points = tuple((steps, found.cycle_ms(case)) for steps, case in plan.fits().items())
    slope, intercept = line(points)
    return Fit(a_ms=intercept, b_ms=slope, points=points)


def place_fits(found: Profiled) -> Mapping[Placement, Fit]:
    """The same for every placement that was timed, through two numbers of steps."""
    fits = {}
    for place, runs in found.placed.items():
        points = tuple((steps, found.placed_ms(place, steps)) for steps in runs)
        slope, intercept = line(points)
        fits[place] = Fit(a_ms=intercept, b_ms=slope, points=points)
    return fits


def draft_step_ms(cycles: Sequence[CycleTimes]) -> float:
    """D: median of one further draft step, over the steps after the first; the first alone where there is no other."""
    steps = [span.ms for cycle in cycles for span in cycle.spans if is_draft(span.label)]
    further = [
        span.ms for cycle in cycles for span in cycle.spans if is_draft(span.label) and span.label != step_label(1)
    ]
    return median(further or steps)


def collectives(cycles: Sequence[CycleTimes]) -> list[Collective]:
    """By stage, group, operation and name, in the order of their first call."""
    kinds: dict[tuple[str, str, str, str], list[Call]] = {}
    for cycle in cycles:
        for call in cycle.calls:
            kinds.setdefault((call.label, call.role, call.op, call.name), []).append(call)
    return [_collective(calls, len(cycles)) for calls in kinds.values()]


def _collective(calls: Sequence[Call], num_cycles: int) -> Collective:
    us = [call.ms * 1e3 for call in calls]
    return Collective(
        label=calls[0].label,
        role=calls[0].role,
        op=calls[0].op,
        name=calls[0].name,
        num_bytes=mean(call.num_bytes for call in calls),
        count=len(calls) / num_cycles,
        us=median(us),
        p90_us=p90(us),
        ms=sum(us) / num_cycles / 1e3,
    )
