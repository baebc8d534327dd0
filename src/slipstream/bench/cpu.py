"""Decoding speed on this machine's CPU: transformers, plain and speculative; same weights, threads and prompts."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.bench.cost import draft_seconds, verify_seconds
from slipstream.bench.reference import Reference
from slipstream.config.sampling import SamplingParams
from slipstream.flow.output import Statistics
from slipstream.serve.completion import Completion
from slipstream.serve.llm import LLM
from slipstream.telemetry.clock import Clock, Stopwatch
from slipstream.text.prompts import PromptEntry

TRANSFORMERS, PLAIN, SPECULATIVE = "transformers", "plain", "speculative"
VERIFY_ROWS = (1, 2, 3, 5, 9)
CACHED = 256  # entries in the cache while the parts of a cycle are timed
REPEATS = 15
WARM_UP_TOKENS = 4

Answer = Callable[[Sequence[int], int], tuple[int, ...]]  # prompt ids and most tokens, to the answer's ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One contender over all rounds; its answers are the same in each."""

    answers: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]  # a round over all prompts, prefill included

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.answers))

    @property
    def rates(self) -> list[float]:
        """Tokens a second of each round."""
        return [self.num_tokens / seconds for seconds in self.seconds]

    @property
    def rate(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """What a cycle costs, as our own runs measured it (prefill excluded) and as its parts add up."""

    plain_step_s: float
    cycle_s: float
    draft_step_s: float
    parts_s: float  # one verify of steps + 1 rows and `steps` draft steps
    counts: Statistics

    @property
    def ratio(self) -> float:
        """R: a cycle over a plain step; speculation breaks even at this accept length."""
        return self.cycle_s / self.plain_step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuReport:
    """Everything that was measured."""

    timed: dict[str, Timed]
    verify_s: dict[int, float]  # by number of rows
    cycle: Cycle | None  # None without a draft


class Ours:
    """An LLM as a contender; it adds up what its answers say of their cycles."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.counts, self.decode_s = Statistics(), 0.0

    def __call__(self, prompt: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        found: Completion = self.llm.generate([list(prompt)], SamplingParams(max_tokens=max_tokens))[0]
        self.counts.add(found.statistics)
        self.decode_s += found.decode_s
        return found.token_ids

    def forget(self) -> None:
        """Leave out what was counted so far, such as a warm-up."""
        self.counts, self.decode_s = Statistics(), 0.0

    @property
    def cycle_s(self) -> float:
        return self.decode_s / self.counts.cycles


def measure(
    plain: LLM,
    fast: LLM | None,
    reference: Reference | None,
    entries: Sequence[PromptEntry],
    *,
    max_tokens: int,
    rounds: int,
    on_round: Callable[[str], None] = lambda name: None,
) -> CpuReport:
    """Race the contenders that there are, then time the parts of a cycle."""
    clock, prompts = Clock(), prompt_ids(plain, entries)
    ours = {PLAIN: Ours(plain)} | ({SPECULATIVE: Ours(fast)} if fast else {})
    theirs = {TRANSFORMERS: transformers_answer(reference, plain)} if reference else {}
    timed = race({**theirs, **ours}, prompts, max_tokens=max_tokens, rounds=rounds, clock=clock, on_round=on_round)
    target = plain.worker.target
    verify_s = verify_seconds(target, VERIFY_ROWS, cached=CACHED, repeats=REPEATS, clock=clock)
    cycle = None if fast is None else _cycle(ours[PLAIN], ours[SPECULATIVE], clock)
    return CpuReport(timed=timed, verify_s=verify_s, cycle=cycle)


def _cycle(plain: Ours, fast: Ours, clock: Clock) -> Cycle:
    """The parts of a chain's cycle beside the whole."""
    worker, shape = fast.llm.worker, fast.llm.speculation
    assert worker.drafter is not None, "the speculative contender has a draft"
    draft_step_s = draft_seconds(worker.drafter.draft.model, cached=CACHED, repeats=REPEATS, clock=clock)
    rows = verify_seconds(worker.target, (shape.num_rows,), cached=CACHED, repeats=REPEATS, clock=clock)
    return Cycle(
        plain_step_s=plain.cycle_s,
        cycle_s=fast.cycle_s,
        draft_step_s=draft_step_s,
        parts_s=rows[shape.num_rows] + shape.steps * draft_step_s,
        counts=fast.counts,
    )


def transformers_answer(reference: Reference, llm: LLM) -> Answer:
    """Transformers as a contender, ending answers where the LLM ends them."""
    eos_ids = llm.tokenizer.eos_ids | set(llm.model_config.eos_ids)

    def answer(prompt: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        return reference.generate(prompt, max_tokens=max_tokens, eos_ids=eos_ids)

    return answer


def prompt_ids(llm: LLM, entries: Sequence[PromptEntry]) -> list[list[int]]:
    """The prompts as every contender gets them."""
    return [llm.tokenizer.encode(llm.render(each.conversation), add_special_tokens=False) for each in entries]


def race(
    contenders: Mapping[str, Answer],
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    rounds: int,
    clock: Clock,
    on_round: Callable[[str], None] = lambda name: None,
) -> dict[str, Timed]:
    """Let the contenders answer all prompts in turn, round after round, so that what slows the machine slows all."""
    for answer in contenders.values():
        answer(prompts[0], WARM_UP_TOKENS)
    for each in contenders.values():
        if isinstance(each, Ours):
            each.forget()
    answers: dict[str, tuple[tuple[int, ...], ...]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, answer in contenders.items():
            with Stopwatch(clock) as watch:
                answers[name] = tuple(answer(prompt, max_tokens) for prompt in prompts)
            seconds[name].append(watch.seconds)
            on_round(name)
    return {name: Timed(answers=answers[name], seconds=tuple(seconds[name])) for name in contenders}


def num_equal(one: Timed, other: Timed) -> int:
    """How many answers are the same, token for token."""
    return sum(mine == theirs for mine, theirs in zip(one.answers, other.answers, strict=True))


def as_row(report: CpuReport) -> dict[str, Any]:
    """The numbers, under their names."""
    plain, first = report.timed[PLAIN], report.verify_s[1]
    row: dict[str, Any] = {
        "num_tokens": plain.num_tokens,
        "tokens_per_s": {name: each.rate for name, each in report.timed.items()},
        "tokens_per_s_by_round": {name: each.rates for name, each in report.timed.items()},
        "answers_equal_to_plain": {name: num_equal(each, plain) for name, each in report.timed.items()},
        "verify_ms": {str(count): seconds * 1e3 for count, seconds in report.verify_s.items()},
        "verify_ratio": {str(count): seconds / first for count, seconds in report.verify_s.items()},
    }
    if (cycle := report.cycle) is not None:
        row |= {
            "draft_step_ms": cycle.draft_step_s * 1e3,
            "plain_step_ms": cycle.plain_step_s * 1e3,
            "cycle_ms": cycle.cycle_s * 1e3,
            "parts_ms": cycle.parts_s * 1e3,
            "cycle_ratio": cycle.ratio,
            "break_even_accept_length": cycle.ratio,
            "accept_length": cycle.counts.accept_length,
        }
    return row
