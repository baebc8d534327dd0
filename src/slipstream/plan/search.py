"""Every K and placement: cycle, R, accept length, speed-up, each with its 80% interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.plan.accept import by_position_length, chain_length
from slipstream.plan.calibrate import Measured, own_draft, own_verify
from slipstream.plan.cost import AS_PUBLISHED, Cycle, Free, Load, Own, Placed, cycle, plain_step
from slipstream.plan.drafts import Draft
from slipstream.plan.hardware import Machine
from slipstream.plan.models import Shape
from slipstream.plan.spread import APPROXIMATE_SD, Draws, Published, Range, draws, interval

MAX_STEPS = 10
STEP_SD, MOST_SD = 0.02, 0.15  # of log accept length: a step further from where it was measured
USUAL_SD = 0.2  # where nobody measured it


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What is known of the draft's acceptance."""

    p: float | None = None  # constant conditional acceptance, from one accept length
    at_steps: int | None = None  # where that was measured
    by_position: tuple[float, ...] = ()
    assumed: bool = False  # what such drafts usually reach

    def length(self, steps: int) -> float:
        """Accept length of so many steps."""
        if self.by_position:
            return by_position_length(self.by_position, steps)
        return chain_length(self.p or 0.0, steps)

    def sd(self, steps: int) -> float:
        """Standard deviation of its logarithm."""
        if self.assumed:
            return USUAL_SD
        far = max(steps - len(self.by_position), 0) if self.by_position else abs(steps - (self.at_steps or steps))
        return min(STEP_SD * far, MOST_SD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be forecast."""

    shape: Shape
    machine: Machine
    draft: Draft
    acceptance: Acceptance
    batch: int = 1
    context: int = 0
    topk: int = 1
    draft_tokens: int | None = None  # of a tree; a chain has as many as steps
    steps: tuple[int, ...] = tuple(range(MAX_STEPS + 1))
    places: tuple[Placed, ...] = ()
    measured: Measured | None = None
    plain_ms: float | None = None  # a plain step as measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One choice of K and placement."""

    steps: int
    place: Placed
    rows: int  # verified a request
    cycle: Cycle
    cycle_ms: Range
    ratio: Range  # R = break-even accept length
    accept_length: Range
    tokens_per_s: Range
    speedup: Range
    worlds_tokens_per_s: np.ndarray  # one for each world, to compare rows within it


def placements(count: int) -> tuple[Placed, ...]:
    """Whole on every rank; cut over the first n ranks, n a divisor of all."""
    cut = [Placed(ranks=n, replicated=False) for n in range(1, count + 1) if count % n == 0 and count > 1]
    return (Placed(), *cut)


def search(question: Question, known: Published, worlds: Draws | None = None) -> list[Row]:
    """All rows: plain decoding first, then K by K, each placement."""
    worlds = draws(known.fitted) if worlds is None else worlds
    frees = [known.fitted.free, *worlds.frees]
    places = question.places or placements(question.machine.count)
    owns = [own_of(question, free) for free in frees]
    plains = np.array([plain_of(question, free, own).ms for free, own in zip(frees, owns, strict=True)])
    return [
        _row(question, known, worlds, frees, owns, plains, steps, place)
        for steps in question.steps
        for place in (places if steps else places[:1])
    ]


def own_of(question: Question, free: Free) -> Own:
    """What the user's own times say of a forward."""
    if question.measured is not None:
        return own_verify(question.measured, question.shape, question.machine, free, context=question.context)
    if question.plain_ms is None:
        return AS_PUBLISHED
    return Own(offset_ms=question.plain_ms - plain_of(question, free, AS_PUBLISHED).ms)


def plain_of(question: Question, free: Free, own: Own) -> Cycle:
    """Plain decoding."""
    return plain_step(
        question.shape, question.machine, free, requests=question.batch, context=question.context, own=own
    )


def cycle_of(question: Question, free: Free, own: Own, steps: int, place: Placed) -> Cycle:
    """A cycle, or a plain step for K = 0."""
    if steps == 0:
        return plain_of(question, free, own)
    if question.measured is not None:
        free = own_draft(question.measured, question.draft, question.machine, place, free)
    load = Load(requests=question.batch, rows=rows_of(question, steps), context=question.context, topk=question.topk)
    return cycle(question.shape, question.machine, question.draft, load, place, free, steps=steps, own=own)


def rows_of(question: Question, steps: int) -> int:
    """Rows that verify sees of each request: draft tokens and the root."""
    if steps == 0 or question.topk == 1:
        return steps + 1
    return (question.draft_tokens or steps * question.topk) + 1


def unknown_sd(question: Question, known: Published) -> float:
    """Standard deviation of log R beside the parameters' own."""
    sd = known.stack_sd if question.measured is None and question.plain_ms is None else known.calibrated_sd
    return math.hypot(sd, APPROXIMATE_SD if question.shape.approximate else 0.0)


def _row(
    question: Question,
    known: Published,
    worlds: Draws,
    frees: Sequence[Free],
    owns: Sequence[Own],
    plains: np.ndarray,
    steps: int,
    place: Placed,
) -> Row:
    cycles = [cycle_of(question, free, own, steps, place) for free, own in zip(frees, owns, strict=True)]
    times = np.array([each.ms for each in cycles])
    stack = np.exp(worlds.stacks * unknown_sd(question, known)) if steps else np.ones(len(worlds.frees))
    length = question.acceptance.length(steps)
    lengths = length * np.exp(worlds.lengths * (question.acceptance.sd(steps) if steps else 0.0))
    rows = rows_of(question, steps)
    lengths = np.clip(lengths, 1.0, steps + 1)
    ratio, ratios = times[0] / plains[0], times[1:] / plains[1:] * stack
    ratios = np.maximum(ratios, 1.0)  # a cycle holds a forward, so it is never shorter than a plain step
    cycle_ms = ratios * plains[1:]
    per_s = 1e3 * question.batch
    return Row(
        steps=steps,
        place=place,
        rows=rows,
        cycle=cycles[0],
        cycle_ms=interval(times[0], cycle_ms),
        ratio=interval(ratio, ratios),
        accept_length=interval(length, lengths),
        tokens_per_s=interval(per_s * length / times[0], per_s * lengths / cycle_ms),
        speedup=interval(length / ratio, lengths / ratios),
        worlds_tokens_per_s=per_s * lengths / cycle_ms,
    )


def best(rows: Sequence[Row]) -> Row:
    """The row of the highest speed-up; plain decoding is always a candidate."""
    return max(rows, key=lambda row: row.speedup.middle)


def best_speculative(rows: Sequence[Row]) -> Row:
    """The best of those that draft."""
    return best([row for row in rows if row.steps])
