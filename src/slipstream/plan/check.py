"""The planner against published numbers, each source predicted from all the others.

Bounds of `make plan-check`: gains and losses told apart, error beside a fit that knows no hardware, how many points the
80% intervals hold, and curves after calibration with V(1) and V(4).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slipstream.plan.calibrate import growth_of
from slipstream.plan.cost import NAMES
from slipstream.plan.fit import (
    NUDGE,
    Fitted,
    Observation,
    as_free,
    curve_ms,
    fit,
    log_ratio,
    observations,
    plain_ms,
)  # fmt: skip
from slipstream.plan.points import CurvePoint, Point
from slipstream.plan.prior import length_of, usual

NORMAL_80 = 1.2816  # half an 80% interval in standard deviations
LEAST_BALANCED, MOST_RATIO, LEAST_HELD, MOST_HELD, MOST_CALIBRATED = 0.85, 0.6, 0.7, 0.9, 0.08
FEW_SOURCES, FEW_SD = 4, 0.35  # too few to learn a spread from: the judgement of an uncalibrated forecast
LEVELS, SLOPES = np.arange(0.7, 2.6, 0.02), np.arange(0.0, 0.5, 0.01)
CALIBRATED_WITH = (1, 4)  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A point, and what was predicted without its source."""

    point: Point
    accept_length: float
    ratio: float  # R
    plain_ms: float  # predicted plain step
    variance: float  # of log R, from the parameters alone
    blind_ratio: float  # R of the fit that knows no hardware
    low: float = 0.0  # 80% interval of the speed-up
    high: float = 0.0

    @property
    def speedup(self) -> float:
        return self.accept_length / self.ratio

    @property
    def blind_speedup(self) -> float:
        return self.accept_length / self.blind_ratio

    @property
    def residual(self) -> float:
        """Logarithm of measured over predicted."""
        return math.log(self.point.speedup / self.speedup)

    @property
    def held(self) -> bool:
        return self.low <= self.point.speedup <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well a set of points was predicted."""

    num_points: int
    num_losses: int
    balanced_accuracy: float  # mean of the shares of gains and of losses that were told; nan without both
    median_error: float  # of |predicted / measured - 1| of the speed-up
    blind_error: float  # the same of the best R = a + b K
    held: float  # share inside the 80% interval

    @property
    def error_ratio(self) -> float:
        return self.median_error / self.blind_error


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveError:
    """One time of a curve beside its prediction after calibration."""

    point: CurvePoint
    predicted_ms: float

    @property
    def error(self) -> float:
        return self.predicted_ms / self.point.ms - 1


def forecasts(points: Sequence[Point], curves: Sequence[CurvePoint], training: Sequence[Point] = ()) -> list[Forecast]:
    """Predict each source's points from what all other sources teach.

    Args:
        training: points to learn from beside `points`; those of a source under test are left out as well.
    """
    known = _distinct([*points, *training])
    seen = observations(known, curves)
    everything = fit(seen)
    found: list[Forecast] = []
    for source in sorted({point.source for point in points}):
        others = [point for point in known if point.source != source]
        fitted = without(seen, source, everything)
        lengths, (level, slope) = usual(others), blind_fit(others)
        found += [
            Forecast(
                point=point,
                accept_length=length_of(point, lengths),
                ratio=math.exp(log_ratio(point, fitted.free)),
                plain_ms=plain_ms(point, fitted.free),
                variance=variance(point, fitted),
                blind_ratio=level + slope * point.steps,
            )
            for point in points
            if point.source == source
        ]
    return with_intervals(found)


def with_plain(found: Sequence[Forecast]) -> list[Forecast]:
    """The same points with their plain speed known, as with `plan --plain`: only what a cycle adds is predicted.

    A published speed is of all requests, of one or of one device, and rows do not say which: the reading closest to the
    predicted plain step is taken.
    """
    known = []
    for each in found:
        speed, point = each.point.baseline, each.point
        if speed is None:
            continue
        readings = (1e3 * point.batch / speed, 1e3 / speed, 1e3 * point.batch / speed / point.machine.count)
        ms = min(readings, key=lambda ms: abs(math.log(ms / each.plain_ms)))
        known.append(replace(each, ratio=1 + (each.ratio - 1) * each.plain_ms / ms))
    return with_intervals(known)


def without(seen: Sequence[Observation], source: str, everything: Fitted) -> Fitted:
    """The fit to all sources but one."""
    others = [each for each in seen if each.source != source]
    return everything if len(others) == len(seen) else fit(others, start=everything)


def variance(point: Point, fitted: Fitted) -> float:
    """Variance of log R that the parameters' own uncertainty brings."""
    logs, middle = fitted.logs, log_ratio(point, fitted.free)
    slopes = np.empty(len(NAMES))
    for column in range(len(NAMES)):
        nudged = logs.copy()
        nudged[column] += NUDGE
        slopes[column] = (log_ratio(point, as_free(nudged)) - middle) / NUDGE
    return float(slopes @ fitted.covariance @ slopes)


def with_intervals(found: Sequence[Forecast]) -> list[Forecast]:
    """Add 80% intervals: the parameters' uncertainty, and what other sources' points showed to come on top of it.

    Points whose accept length is stated and points where a usual one stands in are two populations.
    """
    done: list[Forecast] = []
    for each in found:
        alike = [
            other
            for other in found
            if other.point.source != each.point.source
            and (other.point.accept_length is None) == (each.point.accept_length is None)
        ]
        half = NORMAL_80 * math.sqrt(each.variance + stack_sd(alike) ** 2)
        low, high = each.speedup * math.exp(-half), each.speedup * math.exp(half)
        done.append(replace(each, low=low, high=high))
    return done


def stack_sd(alike: Sequence[Forecast]) -> float:
    """What must be added to the parameters' uncertainty so that intervals hold 80%, sources weighing as sqrt(rows)."""
    sizes = defaultdict(int)
    for each in alike:
        sizes[each.point.source] += 1
    if len(sizes) < FEW_SOURCES:
        return FEW_SD
    needed = sorted(
        (max((each.residual / NORMAL_80) ** 2 - each.variance, 0.0), sizes[each.point.source] ** -0.5) for each in alike
    )
    total, reached = sum(weight for _, weight in needed), 0.0
    for square, weight in needed:
        reached += weight
        if reached >= 0.8 * total:
            return math.sqrt(square)
    return math.sqrt(needed[-1][0])


def blind_fit(points: Sequence[Point]) -> tuple[float, float]:
    """The best R = a + b K: least mean |log error| over a grid, points whose accept length is stated."""
    stated = [point for point in points if point.accept_length is not None]
    steps = np.array([point.steps for point in stated])
    measured = np.array([math.log((point.accept_length or 1.0) / point.speedup) for point in stated])
    levels, slopes = np.meshgrid(LEVELS, SLOPES, indexing="ij")
    ratios = np.log(levels[..., None] + slopes[..., None] * steps)
    best = np.abs(ratios - measured).mean(axis=-1)
    level, slope = np.unravel_index(best.argmin(), best.shape)
    return float(LEVELS[level]), float(SLOPES[slope])


def score(found: Sequence[Forecast]) -> Score:
    """Sum up."""
    measured = np.array([each.point.speedup for each in found])
    predicted, blind = np.array([each.speedup for each in found]), np.array([each.blind_speedup for each in found])
    losses = measured < 1
    shares = [float(np.mean((predicted < 1)[losses])) if losses.any() else math.nan]
    shares.append(float(np.mean((predicted >= 1)[~losses])) if (~losses).any() else math.nan)
    return Score(
        num_points=len(found),
        num_losses=int(losses.sum()),
        balanced_accuracy=sum(shares) / 2,
        median_error=float(np.median(np.abs(predicted / measured - 1))),
        blind_error=float(np.median(np.abs(blind / measured - 1))),
        held=float(np.mean([each.held for each in found])),
    )


def calibrated_curves(
    curves: Sequence[CurvePoint], training: Sequence[CurvePoint], points: Sequence[Point]
) -> list[CurveError]:
    """Other times of each curve after calibration with V(1) and V(4), parameters from the other sources."""
    seen = observations(points, training)
    everything, found = fit(seen), []
    for name in dict.fromkeys((each.curve, each.machine.name) for each in curves if each.shape is not None):
        curve = {each.tokens: each for each in curves if (each.curve, each.machine.name) == name}
        if any(tokens not in curve for tokens in CALIBRATED_WITH):
            continue
        free = without(seen, next(iter(curve.values())).source, everything).free
        bare = {tokens: curve_ms(each, free) for tokens, each in curve.items()}
        first, second = CALIBRATED_WITH
        growth = growth_of(bare[first], bare[second], curve[first].ms, curve[second].ms)
        for tokens, each in curve.items():
            if tokens not in CALIBRATED_WITH:
                ms = curve[first].ms + growth * (bare[tokens] - bare[first])
                found.append(CurveError(point=each, predicted_ms=ms))
    return found


def _distinct(points: Sequence[Point]) -> list[Point]:
    return list({(point.source, point.id): point for point in points}.values())
