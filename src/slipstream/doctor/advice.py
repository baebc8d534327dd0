"""What to set, and what it gains a cycle: latencies times how often a cycle pays them."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.doctor.collectives import CollectiveRow
from slipstream.doctor.latency import DEFAULT, Health, Latency

WORTH_SAYING = 0.03  # of what a cycle's all-reduces take; less is within the spread of the measurement
SHARED_MEMORY = ("push", "one-shot", "two-shot")
ANY_ORDER_SIZE = 2  # ranks: over more, NCCL and shared memory may not be mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to do, or that slipstream does by itself."""

    line: str  # for the environment; empty where there is nothing to set
    what: str
    cycle_us: float  # gained a cycle, against NCCL as it comes
    plain_us: float  # gained a plain decode step
    largest_us: float  # gained at one message of the largest size measured; negative: lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Microseconds by size."""

    sizes: tuple[int, ...]  # ascending
    us: tuple[float, ...]

    def at(self, num_bytes: int) -> float:
        """The time of the next larger size measured, or of the largest."""
        return self.us[min(bisect_left(self.sizes, num_bytes), len(self.sizes) - 1)]


def advise(
    latencies: Sequence[Latency],
    *,
    sizes: Sequence[int],
    plain: Sequence[CollectiveRow],
    cycle: Sequence[CollectiveRow],
    tp: int,
) -> tuple[Advice, ...]:
    """Compare each setting that works with NCCL as it comes, best first; only gains are advice."""
    curves = {
        each.setting.name: Curve(sizes=tuple(sizes), us=each.us) for each in latencies if each.health is Health.OK
    }
    if DEFAULT not in curves:
        return ()
    base = curves[DEFAULT]
    found = [
        _gain(base, curves[each.setting.name], plain, cycle, line=each.setting.line, what=each.setting.name)
        for each in latencies
        if each.setting.line and each.setting.name in curves
    ]
    shared = [curves[name] for name in SHARED_MEMORY if name in curves]
    if shared:
        usable = [*shared, base] if tp <= ANY_ORDER_SIZE else shared
        best = Curve(sizes=base.sizes, us=tuple(map(min, *[curve.us for curve in (usable[0], *usable)])))
        what = "shared memory where it is faster: slipstream measures at start-up and takes it by itself"
        found.append(_gain(base, best, plain, cycle, line="", what=what))
    least = WORTH_SAYING * all_reduce_us(base, cycle)
    return tuple(sorted((each for each in found if each.cycle_us > least), key=lambda each: -each.cycle_us))


def all_reduce_us(curve: Curve, rows: Sequence[CollectiveRow]) -> float:
    """What a cycle's all-reduces take; a draft's over fewer ranks are counted as if over all."""
    return sum(row.count * curve.at(row.num_bytes) for row in rows if row.op == "all_reduce")


def _gain(
    base: Curve, other: Curve, plain: Sequence[CollectiveRow], cycle: Sequence[CollectiveRow], *, line: str, what: str
) -> Advice:
    return Advice(
        line=line,
        what=what,
        cycle_us=all_reduce_us(base, cycle) - all_reduce_us(other, cycle),
        plain_us=all_reduce_us(base, plain) - all_reduce_us(other, plain),
        largest_us=base.us[-1] - other.us[-1],
    )
