"""Is one wiring better than another? Paired differences over the same slots, with an interval over prompts.

Slots of one prompt are not independent, so the prompt is the unit: the standard error of the mean difference is the
cluster-robust one (Liang and Zeger 1986), and Student's t with one degree of freedom less than prompts gives the
interval.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from slipstream.doctor.score import Score

CONFIDENCE = 0.99  # of each interval; about ten of them stand side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Cross-entropy of one wiring minus another's, nats a token."""

    mean: float
    low: float
    high: float

    @property
    def worse(self) -> bool:
        """Surely higher."""
        return self.low > 0

    @property
    def better(self) -> bool:
        """Surely lower."""
        return self.high < 0

    def within(self, bound: float) -> bool:
        """Surely smaller than this, either way."""
        return -bound < self.low and self.high < bound


def difference(one: Score, other: Score) -> Difference:
    """Compare two scores of the same evidence."""
    deltas_C = one.losses_C - other.losses_C
    mean = float(deltas_C.mean())
    prompts = np.unique(one.prompts_C)
    count = len(prompts)
    if count < 2:
        return Difference(mean=mean, low=-math.inf, high=math.inf)
    sums = np.array([(deltas_C[one.prompts_C == prompt] - mean).sum() for prompt in prompts])
    error = math.sqrt(float((sums**2).sum()) * count / (count - 1)) / len(deltas_C)
    reach = t_quantile((1 + CONFIDENCE) / 2, count - 1) * error
    return Difference(mean=mean, low=mean - reach, high=mean + reach)


def t_quantile(probability: float, freedom: int) -> float:
    """Student's t, exact for 1 and 2 degrees of freedom, else within a hundredth (Cornish-Fisher's expansion)."""
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        spread = 2 * probability - 1
        return spread * math.sqrt(2 / (1 - spread * spread))
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))
