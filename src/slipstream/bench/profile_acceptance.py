"""What real prompts get accepted, kept apart from what cycles cost: accept lengths of every shorter chain, by answer.

From one run of depth K a cycle that accepted j tokens would have accepted min(j, k) at depth k.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.config.sampling import SamplingParams
from slipstream.flow.output import Statistics
from slipstream.serve.llm import LLM
from slipstream.text.prompts import PromptEntry

RESAMPLES, SEED = 500, 0
LOW, HIGH = 0.05, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Counts of every answer."""

    answers: tuple[Statistics, ...]
    steps: int  # depth that was drafted
    is_chain: bool

    @property
    def total(self) -> Statistics:
        """All answers together."""
        found = Statistics()
        for each in self.answers:
            found.add(each)
        return found

    def knows(self, steps: int) -> bool:
        """Whether the accept length at so many steps can be read from these answers."""
        return steps == self.steps or (self.is_chain and steps <= self.steps)

    def accept_length(self, steps: int) -> float:
        """At so many steps, all answers together."""
        return accept_length_at(self.answers, steps)


def accept_length_at(answers: Sequence[Statistics], steps: int) -> float:
    """Emitted a cycle, had the chains been so long."""
    cycles = sum(each.cycles for each in answers)
    kept = sum(min(accepted, steps) * count for each in answers for accepted, count in enumerate(each.histogram))
    return 1 + kept / cycles if cycles else 1.0


def measure_acceptance(
    llm: LLM, entries: Sequence[PromptEntry], *, max_tokens: int, on_finish: Callable[[], None]
) -> Accepted:
    """Answer prompts greedily with the shape that the engine has."""
    params, shape = SamplingParams(max_tokens=max_tokens), llm.speculation
    conversations = [entry.conversation for entry in entries]
    completions = llm.chat(conversations, params, on_finish=lambda index, completion: on_finish())
    return Accepted(answers=tuple(each.statistics for each in completions), steps=shape.steps, is_chain=shape.is_chain)


def resampled(draw: Callable[[random.Random], float]) -> tuple[float, float]:
    """A 90% interval: of many draws, each made with the same stream of chance."""
    chance = random.Random(SEED)
    values = sorted(draw(chance) for _ in range(RESAMPLES))
    return values[round(LOW * (RESAMPLES - 1))], values[round(HIGH * (RESAMPLES - 1))]


def accept_interval(accepted: Accepted, steps: int) -> tuple[float, float]:
    """Of the accept length, resampled over answers."""
    answers = accepted.answers
    return resampled(lambda chance: accept_length_at(chance.choices(answers, k=len(answers)), steps))
