"""What a sweep over placements should give by arithmetic, beside what it gave: pure functions of its points.

A placement's cycle differs from another's by its collectives, each as long as the wire takes and the delay that was
injected, and by the draft's weights that one rank reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from slipstream.bench.placement import Case, Found, Load, Point, by_case
from slipstream.parallel.instrument import LedgerRow

PLAIN = Case(place="plain", steps=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One placement beside another, at one number of steps, batch and delay; milliseconds, positive = slower."""

    place: str
    beside: str
    steps: int
    batch: int
    inject_us: float
    num_collectives: int  # more than the other sends in a cycle
    wire_ms: float  # of those, latency and delay together
    weights_ms: float  # of the weights that rank 0 reads more
    measured_ms: float

    @property
    def predicted_ms(self) -> float:
        """Wire and weights."""
        return self.wire_ms + self.weights_ms


def communication_ms(load: Load, found: Found, *, batch: int, inject_us: float) -> float:
    """Of a cycle, by count: every collective as long as its size was measured to take, and the injected delay."""
    us = sum(row.count * (latency_us(row, found, batch=batch) + inject_us) for row in load.collectives)
    return us / 1e3


def latency_us(row: LedgerRow, found: Found, *, batch: int) -> float:
    """Of one: as the next larger all-reduce that was measured; a gather or broadcast as the backend's smallest."""
    if row.op != "all_reduce" or not found.all_reduce_us:
        return found.backend_us
    num_bytes = row.num_bytes / row.count * batch
    return next((us for size, us in found.all_reduce_us if size >= num_bytes), found.all_reduce_us[-1][1])


def differences(found: Found, *, beside: str, batch: int) -> list[Difference]:
    """Every other placement beside one of them."""
    points, rows = by_case(found.points, batch), []
    for (case, inject_us), point in points.items():
        other = Case(place=beside, steps=case.steps)
        if case.place in (beside, PLAIN.place) or (other, inject_us) not in points:
            continue
        ours, theirs = found.loads[case], found.loads[other]
        wire = [communication_ms(load, found, batch=batch, inject_us=inject_us) for load in (ours, theirs)]
        rows.append(
            Difference(
                place=case.place,
                beside=beside,
                steps=case.steps,
                batch=batch,
                inject_us=inject_us,
                num_collectives=ours.num_collectives - theirs.num_collectives,
                wire_ms=wire[0] - wire[1],
                weights_ms=(ours.weight_bytes - theirs.weight_bytes) / found.bytes_per_s * 1e3,
                measured_ms=point.cycle_ms - points[other, inject_us].cycle_ms,
            )
        )
    return sorted(rows, key=lambda row: (row.steps, row.place, row.inject_us))


def even_at_us(rows: Sequence[Difference]) -> float | None:
    """The injected delay at which two placements should be even; None where more delay changes nothing."""
    first = rows[0]
    if not first.num_collectives:
        return None
    return first.inject_us - first.predicted_ms / first.num_collectives * 1e3


def measured_even_at_us(rows: Sequence[Difference]) -> float | None:
    """The same as measured: between the two delays where the sign changes, on a straight line."""
    for before, after in pairwise(rows):
        if before.measured_ms * after.measured_ms <= 0 and before.measured_ms != after.measured_ms:
            part = before.measured_ms / (before.measured_ms - after.measured_ms)
            return before.inject_us + part * (after.inject_us - before.inject_us)
    return None


def winner(points: Sequence[Point]) -> Point:
    """The fastest in tokens per second."""
    return max(points, key=lambda point: point.tokens_per_s)


def winners(found: Found, batch: int) -> dict[float, Point]:
    """The fastest at each injected delay."""
    delays = sorted({point.inject_us for point in found.points})
    return {
        us: winner([each for each in found.points if each.batch == batch and each.inject_us == us]) for us in delays
    }


def ratio(point: Point, found: Found) -> float | None:
    """The cycle ratio R: the cycle beside the plain step at the same batch and delay."""
    plain = by_case(found.points, point.batch).get((PLAIN, point.inject_us))
    return None if plain is None else point.cycle_ms / plain.cycle_ms


def as_rows(found: Found) -> list[dict[str, Any]]:
    """Every point with its sums, in plain JSON types."""
    rows = []
    for point in found.points:
        load = found.loads[point.case]
        rows.append(
            {
                "placement": point.case.place,
                "steps": point.case.steps,
                "batch": point.batch,
                "inject_us": point.inject_us,
                "cycle_ms": round(point.cycle_ms, 4),
                "spread_ms": round(point.spread_ms, 4),
                "draft_ms": round(point.draft_ms, 4),
                "communication_by_count_ms": round(
                    communication_ms(load, found, batch=point.batch, inject_us=point.inject_us), 4
                ),
                "accept_length": round(point.accept_length, 4),
                "tokens_per_s": round(point.tokens_per_s, 2),
                "cycle_ratio": ratio(point, found),
                "collectives": load.num_collectives,
                "collectives_of_drafting": load.num_drafting,
                "collectives_by_name": {f"{row.role} {row.op} {row.name}": row.count for row in load.collectives},
                "draft_weight_bytes": load.weight_bytes,
                "read_bytes_per_s": round(found.bytes_per_s),
                "cycles": point.num_cycles,
            }
        )
    return rows
