"""Accept length over a set of prompts, whole and until answers repeat themselves, by position and by task."""

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slipstream.bench.cut import counts_until
from slipstream.config.sampling import SamplingParams
from slipstream.flow.output import Statistics
from slipstream.serve.completion import Completion
from slipstream.serve.llm import LLM
from slipstream.text.loops import loop_start
from slipstream.text.prompts import PromptEntry

NO_TASK = "(none)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What one draft got accepted at one temperature."""

    whole: Statistics
    by_task: dict[str, Statistics]
    num_answers: int
    num_looping: int
    cycles_until_loop: int
    emitted_until_loop: int
    accept_lengths: tuple[float | None, ...]  # of each answer, in the prompts' order; None for one without cycles

    @property
    def loop_rate(self) -> float:
        return self.num_looping / self.num_answers

    @property
    def accept_length_mean_of_answers(self) -> float:
        found = [each for each in self.accept_lengths if each is not None]
        return sum(found) / len(found) if found else 0.0

    @property
    def accept_length_until_loop(self) -> float:
        return self.emitted_until_loop / self.cycles_until_loop if self.cycles_until_loop else 0.0


def measure(
    llm: LLM, entries: Sequence[PromptEntry], params: SamplingParams, *, on_finish: Callable[[], None] = lambda: None
) -> Acceptance:
    """Answer the prompts; with a seed, prompt i gets seed + i, whatever the batch."""
    each = [params if params.seed is None else replace(params, seed=params.seed + i) for i in range(len(entries))]
    conversations = [entry.conversation for entry in entries]
    completions = llm.chat(conversations, each, on_finish=lambda index, completion: on_finish())
    return summarise(completions, [entry.task or NO_TASK for entry in entries])


def summarise(completions: Sequence[Completion], tasks: Sequence[str]) -> Acceptance:
    """Sum the counts of all answers, and of their beginnings."""
    whole, by_task = Statistics(), {task: Statistics() for task in sorted(set(tasks))}
    for completion, task in zip(completions, tasks, strict=True):
        whole.add(completion.statistics)
        by_task[task].add(completion.statistics)
    starts = [loop_start(each.token_ids) for each in completions]
    ends = [len(each.token_ids) if start is None else start for each, start in zip(completions, starts, strict=True)]
    cut = [counts_until(end, each.runs) for each, end in zip(completions, ends, strict=True)]
    return Acceptance(
        whole=whole,
        by_task=by_task,
        num_answers=len(completions),
        num_looping=sum(start is not None for start in starts),
        cycles_until_loop=sum(cycles for cycles, _ in cut),
        emitted_until_loop=sum(emitted for _, emitted in cut),
        accept_lengths=tuple(each.statistics.accept_length or None for each in completions),
    )


def up_to_position(by_position: Sequence[float]) -> list[float]:
    """P(positions 1 to i all accepted): the products of acceptance by position."""
    return list(itertools.accumulate(by_position, operator.mul))


def chain_forecast(by_position: Sequence[float]) -> list[float]:
    """Accept length of chains of 1, 2, ... steps, from a deeper chain's acceptance by position.

    A chain of j steps accepts min(accepted, j) of what the deeper one would:
    1 + a1 + a1 a2 + ... up to j. Cycles that an answer's end cut short count only as far as they went.
    """
    return list(itertools.accumulate(up_to_position(by_position), initial=1.0))[1:]


def as_row(found: Acceptance, *, is_chain: bool) -> dict[str, Any]:
    """The numbers, under their names; of trees no shallower shape can be forecast."""
    by_position = found.whole.acceptance_by_position
    return {
        "num_answers": found.num_answers,
        **found.whole.named(),
        "acceptance_up_to_position": up_to_position(by_position),
        "accept_length_by_steps": chain_forecast(by_position) if is_chain else None,
        "accept_length_mean_of_answers": found.accept_length_mean_of_answers,
        "accept_length_by_task": {task: each.accept_length for task, each in found.by_task.items()},
        "loop_rate": found.loop_rate,
        "accept_length_until_loop": found.accept_length_until_loop,
    }
