"""Does speculation change an answer? Plain and speculative runs of the same prompts, compared token by token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation
from slipstream.doctor.finding import Grade
from slipstream.flow.output import Statistics
from slipstream.serve.completion import Completion
from slipstream.serve.llm import LLM

DEFINITIONS = {
    "doctor": "which examination this is",
    "model": "the target, as it was named",
    "draft": "the draft's folder",
    "device": "where the models ran",
    "dtype": "of the target",
    "ranks": "ranks that the target is cut over",
    "num_prompts": "prompts that were answered",
    "max_tokens": "longest answer, in tokens",
    "verdict": "healthy: every answer is plain decoding's, token for token; warning: nothing was speculated; broken:"
    " one is not",
    "says": "one sentence",
    "exit_code": "0 healthy, 1 warning, 2 broken",
    "runs": "speculative runs, each compared with the plain run of the same sampling",
    "steps": "draft forwards a cycle",
    "topk": "branches a node; 1 is a chain",
    "draft_tokens": "nodes verified a cycle, without the root",
    "temperature": "0 is greedy",
    "seed": "of the first prompt; prompt i has seed + i. Null where it is greedy",
    "num_answers": "answers that were compared",
    "num_tokens": "tokens of the plain answers",
    "accept_length": "emitted / cycles of the speculative run",
    "accept_rate": "accepted / proposed",
    "differences": "answers that are not plain decoding's",
    "prompt": "number of the prompt, from 0",
    "position": "first token that differs, from 0 in the answer",
    "plain_id": "plain decoding's token there; null where its answer had ended",
    "speculative_id": "the speculative token there; null where its answer had ended",
    "plain_text": "the same as text",
    "speculative_text": "the same as text",
    "definitions": "what each field means",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where an answer leaves plain decoding's."""

    prompt: int
    position: int
    plain_id: int | None
    speculative_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One shape of cycle under one sampling, beside plain decoding."""

    shape: Speculation
    params: SamplingParams
    num_answers: int
    num_tokens: int
    statistics: Statistics  # of the speculative run
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """All comparisons."""

    comparisons: tuple[Comparison, ...]

    @property
    def grade(self) -> Grade:
        """Broken on any difference; a warning if nothing was accepted anywhere, since that proves nothing."""
        if any(each.differences for each in self.comparisons):
            return Grade.BROKEN
        accepted = sum(each.statistics.accepted for each in self.comparisons)
        return Grade.HEALTHY if accepted else Grade.WARNING

    @property
    def says(self) -> str:
        """The verdict in one sentence."""
        runs, answers = len(self.comparisons), sum(each.num_answers for each in self.comparisons)
        tokens = sum(each.num_tokens for each in self.comparisons)
        if self.grade is Grade.BROKEN:
            num_wrong = sum(len(each.differences) for each in self.comparisons)
            return f"{num_wrong} of {answers} speculative answers are not plain decoding's"
        if self.grade is Grade.WARNING:
            return "all answers are the same, but not one drafted token was accepted, so this proves nothing"
        return (
            f"all {answers} answers of {runs} speculative runs, {tokens} tokens, are plain decoding's token for token"
        )


def compare(
    llm: LLM,
    ask: Callable[[SamplingParams], list[Completion]],
    shapes: Sequence[Speculation],
    samplings: Sequence[SamplingParams],
    *,
    on_run: Callable[[str], None] = lambda name: None,
) -> Compared:
    """Answer under each sampling plainly, then under each shape of cycle.

    ask: answers all prompts under some parameters, with the LLM as it is now.
    """
    on_run("plain")
    llm.reconfigure(steps=0)
    plain = [ask(params) for params in samplings]
    found = []
    for shape in shapes:
        on_run(shape_name(shape))
        llm.reconfigure(steps=shape.steps, topk=shape.topk, draft_tokens=shape.draft_tokens)
        found += [_beside(shape, params, before, ask(params)) for params, before in zip(samplings, plain, strict=True)]
    return Compared(comparisons=tuple(found))


def _beside(
    shape: Speculation, params: SamplingParams, plain: Sequence[Completion], speculative: Sequence[Completion]
) -> Comparison:
    statistics = Statistics()
    for each in speculative:
        statistics.add(each.statistics)
    pairs = enumerate(zip(plain, speculative, strict=True))
    found = [first_difference(index, one.token_ids, other.token_ids) for index, (one, other) in pairs]
    return Comparison(
        shape=shape,
        params=params,
        num_answers=len(plain),
        num_tokens=sum(len(each.token_ids) for each in plain),
        statistics=statistics,
        differences=tuple(each for each in found if each is not None),
    )


def first_difference(prompt: int, plain: Sequence[int], speculative: Sequence[int]) -> Difference | None:
    """Where two answers part; None where they are the same."""
    if tuple(plain) == tuple(speculative):
        return None
    shared = min(len(plain), len(speculative))
    position = next((place for place in range(shared) if plain[place] != speculative[place]), shared)
    return Difference(
        prompt=prompt,
        position=position,
        plain_id=plain[position] if position < len(plain) else None,
        speculative_id=speculative[position] if position < len(speculative) else None,
    )


def seeded(params: SamplingParams, count: int) -> list[SamplingParams]:
    """Each prompt's own parameters: with a seed, prompt i has seed + i."""
    if params.seed is None:
        return [params] * count
    return [replace(params, seed=params.seed + index) for index in range(count)]


def shape_name(shape: Speculation) -> str:
    """A shape of cycle in words."""
    if shape.is_chain:
        return f"chain of {shape.steps}"
    return f"tree of {shape.steps} steps, topk {shape.topk}, {shape.draft_tokens} draft tokens"


def comparison_row(found: Comparison, spell: Callable[[int], str]) -> dict[str, Any]:
    """One comparison under its names; spell: gives a token's text."""
    return {
        "steps": found.shape.steps,
        "topk": found.shape.topk,
        "draft_tokens": found.shape.draft_tokens,
        "temperature": found.params.temperature,
        "seed": found.params.seed,
        "num_answers": found.num_answers,
        "num_tokens": found.num_tokens,
        "accept_length": found.statistics.accept_length,
        "accept_rate": found.statistics.accept_rate,
        "differences": [
            {
                "prompt": each.prompt,
                "position": each.position,
                "plain_id": each.plain_id,
                "speculative_id": each.speculative_id,
                "plain_text": None if each.plain_id is None else spell(each.plain_id),
                "speculative_text": None if each.speculative_id is None else spell(each.speculative_id),
            }
            for each in found.differences
        ],
    }
