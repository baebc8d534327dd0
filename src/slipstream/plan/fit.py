"""Fit the free parameters to published measurements: few physical numbers, broad priors, robust, by source.

Each measurement is a logarithm: R of a published speed-up, or the milliseconds of a step, forward or cycle. Rows of one
source and model share what its engine, version and settings did, so they share an offset (a random effect): a source of
seventy rows says little more about the offsets of others than one of two. Residuals and offsets count less the further
out they lie (Student's t, 4 degrees of freedom); solved by Gauss-Newton. Priors are in logarithms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from slipstream.plan.cost import NAMES, Free, Load, Placed, cycle, forward, plain_step
from slipstream.plan.points import CurvePoint, Point

PRIOR_SD = {
    "eta_d": 0.15, "eta_e": 0.35, "eta_c": 0.4, "layer_us": 0.5, "latent_us": 0.7, "moe_us": 0.7, "step_us": 0.6,
    "moe_step_us": 1.2, "verify_us": 0.7, "rho": 0.4, "rho_batch": 0.6, "wire": 0.3, "draft_us": 0.5, "tree_us": 0.7,
    "host_us": 0.6, "cycle_us": 0.6, "row_us": 0.7,
}  # fmt: skip
HIGHEST = {"eta_d": 0.95, "eta_e": 0.95, "eta_c": 0.95, "rho": 0.7, "rho_batch": 0.5}
FREEDOM = 4  # degrees of Student's t
NUDGE, LONGEST, SETTLED = 1e-3, 0.4, 0.005


class What(StrEnum):
    RATIO = "cycle ratio"
    PLAIN = "plain step"
    CURVE = "curve"


OFFSET_SD = {What.RATIO: 0.2, What.PLAIN: 0.2, What.CURVE: 0.3}  # between sources
SPREAD_SD = {What.RATIO: 0.07, What.PLAIN: 0.15, What.CURVE: 0.08}  # within one


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A logarithm that was measured, and what it was measured of."""

    what: What
    source: str
    group: str  # rows that share an offset
    of: Point | CurvePoint
    log: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Free parameters and the covariance of their logarithms, in the order of NAMES."""

    free: Free
    covariance: np.ndarray

    @property
    def logs(self) -> np.ndarray:
        return np.log([getattr(self.free, name) for name in NAMES])


def observations(points: Sequence[Point], curves: Sequence[CurvePoint]) -> list[Observation]:
    """What can be learnt from: points whose accept length is stated, plain steps of one request, curves."""
    found: list[Observation] = []
    seen: set[tuple[str, str, str, float]] = set()
    for point in points:
        if point.accept_length is not None:
            log = math.log(point.accept_length / point.speedup)
            found.append(_observation(What.RATIO, point, log))
        if point.batch != 1 or point.baseline is None or point.machine.assumed:
            continue
        key = (point.source, point.shape.name, point.machine.name, point.baseline)
        if key not in seen:
            seen.add(key)
            found.append(_observation(What.PLAIN, point, math.log(1e3 / point.baseline)))
    for each in curves:
        if each.shape is not None:
            group = f"{each.curve} {each.machine.name}"
            found.append(Observation(what=What.CURVE, source=each.source, group=group, of=each, log=math.log(each.ms)))
    return found


def _observation(what: What, point: Point, log: float) -> Observation:
    return Observation(
        what=what, source=point.source, group=f"{what} {point.source} {point.shape.name}", of=point, log=log
    )


def predicted(observation: Observation, free: Free) -> float:
    """The logarithm that the model gives."""
    of = observation.of
    if isinstance(of, CurvePoint):
        return math.log(curve_ms(of, free))
    return log_ratio(of, free) if observation.what is What.RATIO else math.log(plain_ms(of, free))


def log_ratio(point: Point, free: Free) -> float:
    """log R of a published point."""
    load = Load(requests=point.batch, rows=point.rows, topk=point.topk)
    whole = cycle(point.shape, point.machine, point.draft, load, usual_place(point), free, steps=point.steps)
    return math.log(whole.ms / plain_ms(point, free))


def plain_ms(point: Point, free: Free) -> float:
    """Milliseconds of a point's plain step."""
    return plain_step(point.shape, point.machine, free, requests=point.batch).ms


def curve_ms(point: CurvePoint, free: Free) -> float:
    """Milliseconds of a point of a curve."""
    assert point.shape is not None, "curves of unknown models are left out"
    if point.rows == 1:
        return plain_step(point.shape, point.machine, free, requests=point.requests).ms
    load = Load(requests=point.requests, rows=point.rows)
    if point.draft is None:
        return forward(point.shape, point.machine, load, free).ms + free.host_us / 1e3
    return cycle(point.shape, point.machine, point.draft, load, usual_place(point), free, steps=point.steps).ms


def usual_place(point: Point | CurvePoint) -> Placed:
    """Stock engines cut the draft over all ranks."""
    count = point.machine.count
    return Placed(ranks=count, replicated=count == 1)


def fit(seen: Sequence[Observation], *, start: Fitted | None = None, iterations: int = 20) -> Fitted:
    """The free parameters that observations and priors make likeliest."""
    prior, prior_sd = Fitted(free=Free(), covariance=np.empty(0)).logs, np.array([PRIOR_SD[name] for name in NAMES])
    groups = sorted({each.group for each in seen})
    member = np.zeros((len(seen), len(groups)))
    member[range(len(seen)), [groups.index(each.group) for each in seen]] = 1
    whats = {each.group: each.what for each in seen}
    offset_sd = np.array([OFFSET_SD[whats[group]] for group in groups])
    spread_sd = np.array([SPREAD_SD[each.what] for each in seen])
    measured = np.array([each.log for each in seen])
    logs, offsets = (prior if start is None else start.logs).copy(), np.zeros(len(groups))
    inverse = np.diag(prior_sd**2)
    count, at = len(NAMES), range(len(NAMES), len(NAMES) + len(groups))
    for _ in range(iterations):
        values, slopes = linearised(seen, logs)
        residual = measured - values - member @ offsets
        design = np.hstack([slopes, member])
        weight = _trust(residual / spread_sd) / spread_sd**2
        held = _trust(offsets / offset_sd) / offset_sd**2
        curvature = design.T @ (design * weight[:, None])
        curvature[range(count), range(count)] += 1 / prior_sd**2
        curvature[at, at] += held
        pull = design.T @ (weight * residual) - np.concatenate([(logs - prior) / prior_sd**2, offsets * held])
        inverse = np.linalg.inv(curvature)
        move = inverse @ pull
        change = np.clip(move[:count], -LONGEST, LONGEST)
        logs, offsets = _bounded(logs + change), offsets + move[count:]
        if np.abs(change).max(initial=0.0) < SETTLED:
            break
    return Fitted(free=as_free(logs), covariance=inverse[:count, :count])


def linearised(seen: Sequence[Observation], logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predicted logarithms, and how they change with each parameter's."""
    free = as_free(logs)
    values = np.array([predicted(each, free) for each in seen])
    slopes = np.empty((len(seen), len(logs)))
    for column in range(len(logs)):
        nudged = logs.copy()
        nudged[column] += NUDGE
        other = as_free(nudged)
        slopes[:, column] = (np.array([predicted(each, other) for each in seen]) - values) / NUDGE
    return values, slopes


def as_free(logs: np.ndarray) -> Free:
    """Free parameters of their logarithms."""
    return Free(**{name: math.exp(value) for name, value in zip(NAMES, logs, strict=True)})


def _trust(scaled: np.ndarray) -> np.ndarray:
    return (FREEDOM + 1) / (FREEDOM + scaled**2)


def _bounded(logs: np.ndarray) -> np.ndarray:
    highest = np.array([math.log(HIGHEST.get(name, math.inf)) for name in NAMES])
    return np.minimum(logs, highest)
