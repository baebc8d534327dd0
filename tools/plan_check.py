"""`make plan-check`: the planner against published numbers, each source predicted from the others; bounds decide.

`python -m tools.plan_check [--points FILE] [--curves FILE] [--write]`: other files of the same columns are predicted
from the published ones, without rows of their own sources. --write fits to everything and stores what is shipped.
Exit code 0: every bound holds; 1: one does not; 2: a file cannot be read.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from slipstream.cli.show import table
from slipstream.plan import check
from slipstream.plan.check import Forecast, Score
from slipstream.plan.cost import NAMES
from slipstream.plan.fit import fit, observations
from slipstream.plan.points import CurvePoint, Excluded, Point, read_curves, read_points
from slipstream.plan.prior import usual

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "data"
SHIPPED = ROOT / "src" / "slipstream" / "plan" / "data" / "free.toml"
POINTS, CURVES, ANCHORS = DATA / "published_points.csv", DATA / "cost_curves.csv", DATA / "anchors.csv"
FAR = 0.25  # a relative error that is listed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; its exit code."""
    parser = argparse.ArgumentParser(prog="plan_check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", type=Path, default=POINTS)
    parser.add_argument("--curves", type=Path, default=CURVES)
    parser.add_argument("--write", action="store_true", help="store the fit to everything in the package")
    chosen = parser.parse_args(arguments)
    console = Console(file=sys.stdout, width=160, highlight=False, markup=False)
    try:
        points, excluded = read_points(chosen.points)
        curves = read_curves(chosen.curves)
        published, _ = read_points(POINTS)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    training = [*read_curves(CURVES), *read_curves(ANCHORS)]
    found = check.forecasts(points, training, published)
    errors = check.calibrated_curves(curves, training, published)
    if chosen.write:
        write(published, training, found, errors)
        console.print(f"written: {SHIPPED.relative_to(ROOT)}")
    print_sources(console, points, excluded)
    failed = print_scores(console, found, errors)
    print_misses(console, found)
    return 1 if failed else 0


def print_sources(console: Console, points: Sequence[Point], excluded: Sequence[Excluded]) -> None:
    """What is used, what is not, why."""
    console.print(f"{len(points)} points of {len({each.source for each in points})} sources, each source left out once")
    for reason, count in Counter(each.reason for each in excluded).most_common():
        console.print(f"  left out: {count:3d} rows: {reason}")
    for what, count in Counter(each for point in points for each in point.assumed).most_common():
        console.print(f"  assumed:  {count:3d} rows do not state their {what}, or not by a name that is known")


def populations(found: Sequence[Forecast]) -> dict[str, list[Forecast]]:
    """Points by what their row states; the first is what `slipstream plan` asks for, and what bounds are judged on."""
    stated = [each for each in found if each.point.accept_length is not None]
    asked = [each for each in stated if not each.point.machine.assumed]
    return {
        "accept length and hardware stated": asked,
        "the same with plain speed known": check.with_plain(asked),
        "accept length stated": stated,
        "all": list(found),
    }


def print_scores(console: Console, found: Sequence[Forecast], errors: Sequence[check.CurveError]) -> int:
    """The table and the bounds; how many bounds fail."""
    rows, scores = [], {}
    for name, some in populations(found).items():
        if some:
            scores[name] = check.score(some)
            rows.append([name, *cells(scores[name])])
    columns = ("points", "number", "losses", "balanced accuracy", "median error", "blind median error", "of blind")
    console.print()
    console.print(table((*columns, "in 80% interval"), rows))
    console.print(
        "balanced accuracy: mean of the shares of gains and of losses that were told apart; error: |predicted /"
        " measured - 1| of the speed-up; blind: the best R = a + b K, by the same rule; a row without accept length"
        " takes the usual one of other sources' drafts of its kind, a row without hardware as many H100 as it needs"
    )
    failed = 0
    for place, (name, judged) in enumerate(scores.items()):
        console.print(f"\n{name}{'' if place == 0 else ': shown, does not decide'}")
        for ok, line in bounds(judged):
            failed += place == 0 and not ok
            console.print(f"  {'ok  ' if ok else 'MISS'} {line}")
    for ok, line in curve_bound(errors):
        failed += not ok
        console.print(f"\ncurves\n  {'ok  ' if ok else 'MISS'} {line}")
    return failed


def cells(score: Score) -> list[str]:
    """One population's numbers."""
    return [
        str(score.num_points),
        str(score.num_losses),
        "-" if math.isnan(score.balanced_accuracy) else f"{score.balanced_accuracy:.1%}",
        f"{score.median_error:.1%}",
        f"{score.blind_error:.1%}",
        f"{score.error_ratio:.2f}",
        f"{score.held:.0%}",
    ]


def bounds(judged: Score) -> list[tuple[bool, str]]:
    """What must hold of speed-ups; gains alone or losses alone cannot be told apart."""
    accuracy, ratio, held = judged.balanced_accuracy, judged.error_ratio, judged.held
    lines: list[tuple[bool, str]] = []
    if not math.isnan(accuracy):
        ok = accuracy >= check.LEAST_BALANCED
        lines.append((ok, f"(a) balanced accuracy {accuracy:.1%}, at least {check.LEAST_BALANCED:.0%}"))
    lines.append((ratio <= check.MOST_RATIO, f"(b) median error {ratio:.2f} of blind, at most {check.MOST_RATIO}"))
    ok = check.LEAST_HELD <= held <= check.MOST_HELD
    lines.append((ok, f"(c) 80% intervals hold {held:.0%}, {check.LEAST_HELD:.0%}-{check.MOST_HELD:.0%}"))
    return lines


def curve_bound(errors: Sequence[check.CurveError]) -> list[tuple[bool, str]]:
    """What must hold of calibrated curves, where there are any."""
    if not errors:
        return []
    middle = float(np.median([abs(each.error) for each in errors]))
    told = f"(d) calibrated with V(1) and V(4): median error {middle:.1%} of {len(errors)} other times"
    return [(middle <= check.MOST_CALIBRATED, f"{told}, at most {check.MOST_CALIBRATED:.0%}")]


def print_misses(console: Console, found: Sequence[Forecast]) -> None:
    """Points with a stated accept length that were told wrong or lie far off."""
    rows = []
    for each in populations(found)["accept length stated"]:
        wrong = (each.speedup < 1) != (each.point.speedup < 1)
        if wrong or abs(each.speedup / each.point.speedup - 1) > FAR:
            interval = f"{each.low:.2f}-{each.high:.2f}"
            rows.append([each.point.id, f"{each.point.speedup:.2f}", f"{each.speedup:.2f}", interval, reason(each)])
    if rows:
        console.print(f"\ntold wrong, or more than {FAR:.0%} off, of the points whose accept length is stated")
        console.print(table(("id", "measured", "predicted", "80% interval", "why"), rows, texts=("why",)))


def reason(each: Forecast) -> str:
    """The likeliest reason for a miss."""
    point, side = each.point, []
    if (each.speedup < 1) != (point.speedup < 1):
        side.append("gain told as loss" if point.speedup >= 1 else "loss told as gain")
    ratio = each.accept_length / point.speedup
    side.append(f"R {ratio:.2f} measured, {each.ratio:.2f} predicted")
    if point.machine.assumed:
        side.append(f"hardware not stated, {point.machine.name} assumed")
    elif ratio > each.ratio and ratio > each.ratio * math.exp(FAR):
        side.append("its cycle has costs that bytes and launches do not explain")
    if "steps" in point.assumed:
        side.append(f"steps not stated, {point.steps} assumed")
    return "; ".join(side)


def write(
    points: Sequence[Point],
    curves: Sequence[CurvePoint],
    found: Sequence[Forecast],
    errors: Sequence[check.CurveError],
) -> None:
    """Fit to everything and store it beside what intervals need."""
    fitted, lengths = fit(observations(points, curves)), usual(points)
    judged = populations(found)["accept length and hardware stated"]
    rest = float(np.median([abs(math.log1p(each.error)) for each in errors])) / 0.6745
    lines = ["# Written by `make plan-fit`: the fit to benchmarks/data, not to be edited.", ""]
    lines += [f"stack_sd = {check.stack_sd(judged):.4f}  # of log R, from sources left out"]
    lines += [f"calibrated_sd = {rest:.4f}  # the same, calibrated with V(1) and V(4)", "", "[usual]"]
    lines += [f'"{kind.value}" = {p:.4f}' for kind, p in sorted(lengths.by_kind.items())]
    lines += [f"other = {lengths.other:.4f}", "", "[free]"]
    lines += [f"{name} = {getattr(fitted.free, name):.6g}" for name in NAMES]
    lines += ["", "[covariance]  # of their logarithms, in the same order"]
    for name, row in zip(NAMES, fitted.covariance, strict=True):
        lines.append(f"{name} = [{', '.join(f'{value:.4g}' for value in row)}]")
    SHIPPED.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
