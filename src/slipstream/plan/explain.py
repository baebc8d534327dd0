"""A verdict, what limits the best choice, and what would change it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slipstream.plan.accept import MAX_P
from slipstream.plan.drafts import DraftKind
from slipstream.plan.hardware import ALL_REDUCE_STATES, resized
from slipstream.plan.models import BF16
from slipstream.plan.search import Acceptance, Question, Row, best, best_speculative, rows_of, search
from slipstream.plan.spread import Draws, Published, Range, interval

ROOMY = 0.9  # share of memory that may be used
BETTER = 0.1  # what more data might add to conditional acceptance
MIN_GAIN = 0.005  # below it a change is not worth a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One word and one sentence."""

    word: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something changed, and what its best row gains."""

    what: str
    gain: Range
    best: Row


def verdict(question: Question, rows: Sequence[Row], *, stated: bool) -> Verdict:
    """What the best row that drafts brings; without a stated accept length, what one would need."""
    top = best_speculative(rows)
    where = f"K = {top.steps}" + (f", draft {top.place}" if question.machine.count > 1 else "")
    speed = f"{top.speedup.middle:.2f}x plain decoding (80% interval {top.speedup.low:.2f}-{top.speedup.high:.2f})"
    if not stated:
        low = min((row for row in rows if row.steps), key=lambda row: row.ratio.middle)
        sentence = (
            f"INCONCLUSIVE: no accept length was given. Break-even is {low.ratio} at K = {low.steps} and rises with K;"
            f" a draft as good as others of its kind would give {speed} at {where}. Pass --accept LENGTH@STEPS"
        )
        return Verdict(word="INCONCLUSIVE", sentence=sentence)
    if top.speedup.low > 1:
        return Verdict(word="GAIN", sentence=f"GAIN: {where} runs at {speed}")
    if top.speedup.high < 1:
        return Verdict(word="LOSS", sentence=f"LOSS: even the best, {where}, runs at {speed}; decode plainly")
    return Verdict(word="INCONCLUSIVE", sentence=f"INCONCLUSIVE: {where} runs at {speed}; {narrower(question)}")


def narrower(question: Question) -> str:
    """What to measure next."""
    if question.measured is not None and len(question.measured.verify_ms) > 1:
        return "what is left open are drafting, the host and the accept length: time whole cycles, slipstream profile"
    return "two times V(n) of the target's forward would narrow it, --calibrate-points 1:MS,4:MS"


def limits(row: Row) -> list[tuple[str, float]]:
    """Milliseconds of a cycle by part, the largest first."""
    parts, cycle = row.cycle.verify, row.cycle
    found = {
        "dense weights": parts.dense_ms,
        "experts": parts.experts_ms,
        "cache": parts.cache_ms,
        "all-reduce": parts.all_reduce_ms + cycle.draft_all_reduce_ms,
        "fixed": parts.fixed_ms,
        "compute": parts.compute_ms,
        "draft": cycle.draft_ms - cycle.draft_all_reduce_ms,
        "host": cycle.host_ms,
        "own": parts.own_ms,
    }
    return sorted(((name, ms) for name, ms in found.items() if ms), key=lambda each: -abs(each[1]))


def all_reduce_us(question: Question, row: Row) -> float:
    """One all-reduce of verify's size."""
    shape, rows = question.shape, rows_of(question, row.steps) * question.batch
    return question.machine.all_reduce_us(rows * shape.hidden * BF16 / 8, question.machine.count)


def fits(question: Question) -> bool:
    """Whether weights and cache fit."""
    shape, machine = question.shape, question.machine
    cache = question.batch * question.context * shape.kv_per_token * shape.kv_bits / 8
    held = shape.weight_bytes + cache * (1 if shape.kv_splits else machine.count)
    return held <= ROOMY * machine.count * machine.device.memory_bytes


def changes(question: Question, known: Published, worlds: Draws) -> list[Change]:
    """Each change's predicted gain, the largest first; own times are left out, because they were of this machine."""
    bare = replace(question, measured=None, plain_ms=None)
    now = best(search(bare, known, worlds))
    found = []
    for what, change in possible(bare).items():
        other = best(search(change(bare), known, worlds))
        gain = _gain(now, other)
        if abs(gain.middle) > MIN_GAIN:
            found.append(Change(what=what, gain=gain, best=other))
    return sorted(found, key=lambda each: -each.gain.middle)


def possible(question: Question) -> Mapping[str, Callable[[Question], Question]]:
    """Changes that make sense of this machine and draft."""
    found: dict[str, Callable[[Question], Question]] = {}
    machine, draft = question.machine, question.draft
    if machine.count > 1:
        for state in ALL_REDUCE_STATES:
            if state != machine.state:
                found[f"all-reduce {state}"] = lambda each, state=state: replace(
                    each, machine=replace(each.machine, state=state)
                )
    if machine.count < 16:
        found["twice the devices"] = lambda each: replace(
            each, machine=resized(each.machine, 2 * each.machine.count), places=()
        )
    if draft.kind is not DraftKind.FREE:
        found[f"a better draft (conditional acceptance +{BETTER:g})"] = lambda each: replace(
            each, acceptance=better(each.acceptance)
        )
    for bits in (8.0, 4.5):
        if 0 < bits < draft.bits:
            found[f"draft in {bits:g} bits"] = lambda each, bits=bits: replace(
                each, draft=replace(each.draft, bits=bits)
            )
    if question.shape.bits > 8:
        found["the target's dense weights in 8 bits"] = lambda each: replace(
            each, shape=replace(each.shape, bits=8.0, routed_bits=min(each.shape.routed_bits, 8.0))
        )
    return found


def better(acceptance: Acceptance) -> Acceptance:
    """The acceptance of a draft that saw more data."""
    if not acceptance.by_position:
        return replace(acceptance, p=min((acceptance.p or 0.0) + BETTER, MAX_P))
    held, before, conditional = 1.0, 1.0, []
    for value in acceptance.by_position:
        conditional.append(min((value / before if before else 0.0) + BETTER, MAX_P))
        before = value
    reached = []
    for each in conditional:
        held *= each
        reached.append(held)
    return replace(acceptance, by_position=tuple(reached))


def placement_gains(rows: Sequence[Row]) -> list[tuple[str, float, int]]:
    """Each placement's best row beside the best of all: name, tokens a second over it minus 1, K."""
    drafting = [row for row in rows if row.steps]
    top = best(drafting)
    found = []
    for place in dict.fromkeys(str(row.place) for row in drafting):
        own = best([row for row in drafting if str(row.place) == place])
        found.append((place, own.tokens_per_s.middle / top.tokens_per_s.middle - 1, own.steps))
    return found


def _gain(now: Row, other: Row) -> Range:
    """Both sides lie in the same worlds, so what stacks differ by cancels."""
    middle = other.tokens_per_s.middle / now.tokens_per_s.middle - 1
    return interval(middle, other.worlds_tokens_per_s / now.worlds_tokens_per_s - 1)
