"""Two drafts on the same prompts with the same seeds: the paired difference of accept length, and its verdict.

Prompts differ far more than drafts do, so the difference is taken prompt by prompt (paired bootstrap: Efron and
Tibshirani 1993, chapter 13); pairs are resampled, so that nothing is assumed of how differences are spread.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

RESAMPLES = 4000
COVERED = 0.95
LEAST_PAIRS = 10  # below, no interval means anything
INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Draft B beside draft A."""

    num_pairs: int
    difference: float
    difference_low: float
    difference_high: float
    num_better: int
    num_worse: int

    @property
    def conclusive(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.num_pairs >= LEAST_PAIRS and (self.difference_low > 0 or self.difference_high < 0)


def compare(a: Sequence[float | None], b: Sequence[float | None]) -> Paired:
    """Pair up accept lengths of the same prompts; a prompt that had no cycle on either side is left out.

    Raises:
        ValueError: no prompt is left.
    """
    pairs = [(mine, other) for mine, other in zip(a, b, strict=True) if mine is not None and other is not None]
    if not pairs:
        raise ValueError("no prompt was answered by both drafts with more than one token; raise --max-tokens")
    found = [other - mine for mine, other in pairs]
    low, high = interval(found)
    return Paired(
        num_pairs=len(pairs),
        difference=fmean(found),
        difference_low=low,
        difference_high=high,
        num_better=sum(each > 0 for each in found),
        num_worse=sum(each < 0 for each in found),
    )


def interval(found: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float]:
    """The 95% interval of the mean, bootstrapped; the same numbers give the same interval."""
    draw = random.Random(seed)
    means = sorted(fmean(draw.choices(found, k=len(found))) for _ in range(resamples))
    edge = int(resamples * (1 - COVERED) / 2)
    return means[edge], means[resamples - 1 - edge]


def verdict(found: Paired, a: str, b: str) -> str:
    """One sentence."""
    span = f"[{found.difference_low:+.3f}, {found.difference_high:+.3f}] over {found.num_pairs} prompts"
    if found.num_pairs < LEAST_PAIRS:
        return f"{INCONCLUSIVE}: {found.num_pairs} prompts are too few to tell {a} and {b} apart; take more"
    if not found.conclusive:
        differs = f"{b} differs from {a} by {found.difference:+.3f} accept length"
        return f"{INCONCLUSIVE}: {differs}, 95% {span}; take more prompts"
    word = "more" if found.difference > 0 else "fewer"
    return f"{b} emits {abs(found.difference):.3f} {word} tokens a cycle than {a}, 95% {span}"


def as_row(found: Paired, a: str, b: str) -> dict[str, Any]:
    """The numbers, under their names."""
    return {"draft_a": a, "draft_b": b, **asdict(found), "verdict": verdict(found, a, b)}
