"""Gain or loss, and whether that can be said: accept length over R, with an interval. Pure functions."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from slipstream.bench.profile_acceptance import Accepted, accept_interval, accept_length_at, resampled

GAIN, LOSS, INCONCLUSIVE = "GAIN", "LOSS", "INCONCLUSIVE"
LEAST_ANSWERS, LEAST_CYCLES, LEAST_TIMED = 8, 100, 16  # below, evidence is thin
MOST_SPREAD = 0.3  # of the median, between the quartiles of equal cycles


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What speculation is worth here."""

    word: str
    ratio: float  # R
    ratio_low: float
    ratio_high: float
    accept_length: float | None  # measured on prompts; None where it was not
    accept_low: float | None
    accept_high: float | None
    gain: float | None  # accept length / R - 1
    gain_low: float | None
    gain_high: float | None
    reason: str  # why it is inconclusive; empty otherwise


def judge(
    cycles_ms: Sequence[float], plain_ms: Sequence[float], accepted: Accepted | None, *, steps: int, unmeasured: str
) -> Verdict:
    """Compare cycles with plain steps; unmeasured: why there is no acceptance where there is none."""
    ratio = median(cycles_ms) / median(plain_ms)
    ratio_low, ratio_high = resampled(lambda chance: _ratio(chance, cycles_ms, plain_ms))
    if accepted is None or not accepted.knows(steps):
        reason = f"{unmeasured}; break-even is an accept length of {ratio:.2f}"
        nothing = dict.fromkeys(("accept_length", "accept_low", "accept_high", "gain", "gain_low", "gain_high"))
        return Verdict(
            word=INCONCLUSIVE, ratio=ratio, ratio_low=ratio_low, ratio_high=ratio_high, reason=reason, **nothing
        )

    def draw(chance: random.Random) -> float:
        answers = chance.choices(accepted.answers, k=len(accepted.answers))
        return accept_length_at(answers, steps) / _ratio(chance, cycles_ms, plain_ms) - 1

    length, (low, high) = accepted.accept_length(steps), resampled(draw)
    reason = _doubt(low, high, accepted, cycles_ms, plain_ms)
    accept_low, accept_high = accept_interval(accepted, steps)
    gain = length / ratio - 1
    return Verdict(
        word=INCONCLUSIVE if reason else GAIN if gain > 0 else LOSS,
        ratio=ratio,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        accept_length=length,
        accept_low=accept_low,
        accept_high=accept_high,
        gain=gain,
        gain_low=low,
        gain_high=high,
        reason=reason,
    )


def _ratio(chance: random.Random, cycles_ms: Sequence[float], plain_ms: Sequence[float]) -> float:
    drawn = [median(chance.choices(times, k=len(times))) for times in (cycles_ms, plain_ms)]
    return drawn[0] / drawn[1]


def _doubt(low: float, high: float, accepted: Accepted, cycles_ms: Sequence[float], plain_ms: Sequence[float]) -> str:
    """Why nothing can be said; empty if something can."""
    total, num_timed = accepted.total, min(len(cycles_ms), len(plain_ms))
    if num_timed < LEAST_TIMED:
        return f"only {num_timed} cycles were timed, {LEAST_TIMED} are needed: raise --cycles"
    if len(accepted.answers) < LEAST_ANSWERS:
        return f"only {len(accepted.answers)} answers, {LEAST_ANSWERS} are needed: raise --limit"
    if total.cycles < LEAST_CYCLES:
        return f"only {total.cycles} cycles of answers, {LEAST_CYCLES} are needed: raise --limit or --max-tokens"
    spread = max(_spread(cycles_ms), _spread(plain_ms))
    if spread > MOST_SPREAD:
        return f"equal cycles differ by {spread:.0%} between quartiles: the machine does other work, so try again"
    if low <= 0 <= high:
        return f"the 90% interval, {low:+.1%} to {high:+.1%}, holds 0"
    return ""


def _spread(times: Sequence[float]) -> float:
    low, middle, high = quantiles(times, n=4)
    return (high - low) / middle
