"""Tables and sentences of `slipstream bench placement`."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.table import Table

from slipstream.bench.placement import Case, Found, Load, Point, by_case
from slipstream.bench.placement_sums import (
    PLAIN,
    Difference,
    communication_ms,
    differences,
    even_at_us,
    measured_even_at_us,
    ratio,
    winners,
)
from slipstream.cli.show import stdout_console, table

LEGEND = (
    "cycle: median of the wall clock on rank 0, +- half the distance between the quartiles; R = cycle / plain step at"
    " the same batch and delay; * = most tok/s = bs x accept length / cycle",
    "draft: from the cycle's first mark until it verifies, on rank 0's device; communication by count: a cycle's"
    " collectives x (latency of their size, measured at start-up, + injected)",
)


def print_found(found: Found, settings: Mapping[str, Any], *, beside: str) -> None:
    """Times by batch, then what arithmetic says of them."""
    console = stdout_console()
    lengths = sorted({(point.case.steps, point.accept_length) for point in found.points})
    decreed = ", ".join(f"K {steps}: {length:.2f}" for steps, length in lengths)
    console.print(
        f"{settings['shape']}, tp {settings['tp']}, {settings['dtype']}, {settings['hardware']},"
        f" {settings['prompt']}-token prompts; accept length decreed, {decreed}"
    )
    for line in LEGEND:
        console.print(line)
    for batch in sorted({point.batch for point in found.points}):
        console.print(f"\nbs {batch}: cycle ms, R, tok/s by injected us")
        console.print(cycle_table(found, batch))
        console.print(f"\nbs {batch}: draft ms / communication by count ms, by injected us")
        console.print(part_table(found, batch))
    console.print("\ncollectives of a cycle, and the draft's weights that rank 0 reads")
    console.print(load_table(found.loads))
    for line in arithmetic_lines(found, beside):
        console.print(line)
    for line in flip_lines(found):
        console.print(line)


def cycle_table(found: Found, batch: int) -> Table:
    """Rows placement x K, columns injected microseconds."""
    best = winners(found, batch)

    def cell(point: Point) -> str:
        over = ratio(point, found)
        mark = "*" if best[point.inject_us] is point else ""
        beside = "" if over is None else f" R {over:.2f}"
        return f"{point.cycle_ms:.2f} +-{point.spread_ms / 2:.2f}{beside} {point.tokens_per_s:.0f}{mark}"

    return _by_delay(found, batch, cell)


def part_table(found: Found, batch: int) -> Table:
    """The same rows and columns, of the parts."""

    def cell(point: Point) -> str:
        wire = communication_ms(found.loads[point.case], found, batch=batch, inject_us=point.inject_us)
        return f"{point.draft_ms:.2f} / {wire:.2f}"

    return _by_delay(found, batch, cell)


def _by_delay(found: Found, batch: int, cell: Any) -> Table:
    points = by_case(found.points, batch)
    delays = sorted({inject_us for _, inject_us in points})
    cases = list(dict.fromkeys(case for case, _ in points))
    rows = [[_name(case), *(cell(points[case, us]) for us in delays)] for case in cases]
    return table(("placement, K", *(f"{us:g} us" for us in delays)), rows)


def load_table(loads: Mapping[Case, Load]) -> Table:
    """By case: how many, of them the drafting's, under which names; megabytes."""
    rows = []
    for case, load in loads.items():
        names = ", ".join(f"{row.count} {row.role} {row.name}" for row in load.collectives)
        rows.append(
            [_name(case), str(load.num_collectives), str(load.num_drafting), f"{load.weight_bytes / 1e6:.1f}", names]
        )
    return table(("placement, K", "collectives", "of drafting", "MB", "by name"), rows, texts=["by name"])


def arithmetic_lines(found: Found, beside: str) -> list[str]:
    """Each placement beside the reference: predicted and measured, and where they should be even."""
    wire = f"{found.backend_us:.1f} us" if found.backend_us else "not measured on this backend and left out"
    lines = [
        f"\nby arithmetic: more collectives x (latency + injected) + more weights / {found.bytes_per_s / 1e12:.2f} TB/s"
        f" (read rate of this device); a gather or broadcast: {wire}"
    ]
    for batch in sorted({point.batch for point in found.points}):
        rows = differences(found, beside=beside, batch=batch)
        for (steps, place), group in groupby(rows, key=lambda row: (row.steps, row.place)):
            lines.append(_difference_line(list(group), f"bs {batch}, K {steps}: {place} beside {beside}"))
    return lines


def _difference_line(rows: Sequence[Difference], what: str) -> str:
    sums = ", ".join(f"{row.inject_us:g} us {row.predicted_ms:+.2f} ({row.measured_ms:+.2f})" for row in rows)
    even, measured = even_at_us(rows), measured_even_at_us(rows)
    meets = ""
    if even is not None:
        predicted = f"{even:.0f} us" if even > 0 else "no delay (slower at any)"
        meets = f"; even at {predicted}, measured {'nowhere' if measured is None else f'{measured:.0f} us'}"
    return (
        f"{what}: {rows[0].num_collectives:+d} collectives, weights {rows[0].weights_ms:+.2f} ms;"
        f" predicted (measured) ms at {sums}{meets}"
    )


def flip_lines(found: Found) -> list[str]:
    """Where the winning placement and the best number of steps change, and what each K must earn."""
    lines = []
    for batch in sorted({point.batch for point in found.points}):
        best = winners(found, batch)
        spans = [
            (_name(case), [us for us, _ in group]) for case, group in groupby(best.items(), key=lambda x: x[1].case)
        ]
        told = "; ".join(f"{name} at {', '.join(f'{us:g}' for us in delays)} us" for name, delays in spans)
        lines.append(f"bs {batch} wins: {told}{' (no flip)' if len(spans) == 1 else ''}")
        lines += [line for us in (min(best), max(best)) if (line := _why(found, best[us]))]
    return lines


def _why(found: Found, best: Point) -> str:
    """Why this number of steps: another one's accept length does not pay for its cycle."""
    points = by_case(found.points, best.batch)
    parts = []
    for (case, us), other in points.items():
        if us == best.inject_us and case.steps != best.case.steps and case.place in (best.case.place, PLAIN.place):
            gain, cost = other.accept_length / best.accept_length, other.cycle_ms / best.cycle_ms
            parts.append(f"K {case.steps} has {gain:.2f}x the tokens for {cost:.2f}x the cycle")
    return f"  at {best.inject_us:g} us, beside {_name(best.case)}: {', '.join(parts)}" if parts else ""


def _name(case: Case) -> str:
    return case.place if case == PLAIN else f"{case.place}, K {case.steps}"
