"""Intervals: draws of the free parameters from their fit, and of what stacks of like parts still differ by.

Draws are the same for every row of a table, so that rows are compared under the same unknowns.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from slipstream.plan.cost import NAMES, Free
from slipstream.plan.fit import Fitted, as_free

NUM_DRAWS, SEED = 200, 5
LOW, HIGH = 0.1, 0.9  # of an 80% interval
APPROXIMATE_SD = 0.05  # more, of log R, where a model's shape was assembled from sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The fit to published measurements that is shipped, and what comes on top of its uncertainty."""

    fitted: Fitted
    stack_sd: float  # of log R: what stacks differ by beside the parameters
    calibrated_sd: float  # the same after calibration with V(1) and another V(n)
    usual: dict[str, float]  # conditional acceptance by kind of draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Possible worlds: free parameters, and a factor on log R for each."""

    frees: tuple[Free, ...]
    stacks: np.ndarray  # standard normal
    lengths: np.ndarray  # standard normal, of the accept length


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A number and its 80% interval."""

    middle: float
    low: float
    high: float

    def as_row(self) -> list[float]:
        """Middle, low, high."""
        return [round(each, 4) for each in (self.middle, self.low, self.high)]

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f}-{self.high:.2f})"


@cache
def published() -> Published:
    """Read data/free.toml, which `make plan-fit` writes."""
    raw = tomllib.loads((files("slipstream.plan") / "data" / "free.toml").read_text(encoding="utf-8"))
    covariance = np.array([raw["covariance"][name] for name in NAMES])
    free = Free(**{name: raw["free"][name] for name in NAMES})
    return Published(
        fitted=Fitted(free=free, covariance=covariance),
        stack_sd=raw["stack_sd"],
        calibrated_sd=raw["calibrated_sd"],
        usual=raw["usual"],
    )


def draws(fitted: Fitted, *, num: int = NUM_DRAWS) -> Draws:
    """Worlds drawn from a fit, always the same ones."""
    source = np.random.default_rng(SEED)
    logs = source.multivariate_normal(fitted.logs, fitted.covariance, size=num, method="eigh")
    return Draws(
        frees=tuple(as_free(each) for each in logs),
        stacks=source.standard_normal(num),
        lengths=source.standard_normal(num),
    )


def interval(middle: float, values: Sequence[float] | np.ndarray) -> Range:
    """The 80% interval of values, around their own middle's place."""
    low, high = np.quantile(np.asarray(values), [LOW, HIGH])
    return Range(middle=middle, low=float(min(low, middle)), high=float(max(high, middle)))
