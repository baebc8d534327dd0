"""What comes back: runs of tokens from a cycle, and finished answers."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from slipstream.flow.logprobs import Logprobs
from slipstream.flow.request import RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The tokens one request got from one cycle, before the host trims them; or what a chunk of its prompt gave."""

    request: RequestId
    tokens: tuple[int, ...]  # accepted drafts, then the target's own; none after a chunk that others follow
    proposed: int  # drafted tokens that could have been accepted
    depth: int  # of them, the deepest
    logprobs: tuple[Logprobs, ...] | None = None  # of every token, where the request wants them
    prompt_logprobs: tuple[Logprobs, ...] = ()  # of the prompt's tokens that follow the chunk's, where they are wanted


class FinishReason(Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"  # given up, by its user or because its grammar grew beyond what can be followed


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Counts over the cycles of one request or of many; every name as in docs/speculation.md.

    A cycle whose run was trimmed counts the tokens that were kept: emitted is their number, accepted one less.
    """

    cycles: int = 0
    proposed: int = 0
    emitted: int = 0
    histogram: list[int] = field(default_factory=list)  # cycles by number of accepted tokens
    not_drafted: int = 0  # cycles in which nothing was drafted because the context is beyond the draft's length
    reached: list[int] = field(default_factory=list)  # cycles in which position i was drafted and all before accepted
    passed: list[int] = field(default_factory=list)  # of those, position i accepted

    @property
    def accepted(self) -> int:
        """Drafted tokens that were kept."""
        return self.emitted - self.cycles

    @property
    def accept_length(self) -> float:
        """Emitted tokens a cycle; 1.0 for plain decoding."""
        return self.emitted / self.cycles if self.cycles else 0.0

    @property
    def accept_rate(self) -> float:
        """Accepted over proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """P(position i accepted | positions before i accepted), i from 1."""
        return [passed / reached if reached else 0.0 for passed, reached in zip(self.passed, self.reached, strict=True)]

    def named(self) -> dict[str, Any]:
        """Every number under its name."""
        names = ("cycles", "proposed", "accepted", "emitted", "not_drafted", "accept_length", "accept_rate")
        return {
            **{name: getattr(self, name) for name in names},
            "acceptance_by_position": self.acceptance_by_position,
            "histogram": list(self.histogram),
        }

    def record(self, *, kept: int, depth: int, proposed: int, trimmed: bool) -> None:
        """Count one cycle that kept `kept` tokens out of a tree of this depth."""
        accepted = kept - 1
        self.cycles += 1
        self.proposed += proposed
        self.emitted += kept
        if len(self.histogram) <= accepted:
            _grow(self.histogram, accepted + 1)
        self.histogram[accepted] += 1
        num_reached = accepted if trimmed else min(accepted + 1, depth)
        reached, passed = self.reached, self.passed
        if len(reached) < num_reached:
            _grow(reached, num_reached)
            _grow(passed, num_reached)
        for position in range(num_reached):
            reached[position] += 1
        for position in range(accepted if accepted < num_reached else num_reached):
            passed[position] += 1

    def add(self, other: "Statistics") -> None:
        """Add another request's counts."""
        self.cycles += other.cycles
        self.proposed += other.proposed
        self.emitted += other.emitted
        self.not_drafted += other.not_drafted
        for name in ("histogram", "reached", "passed"):
            mine, theirs = getattr(self, name), getattr(other, name)
            _grow(mine, len(theirs))
            for index, count in enumerate(theirs):
                mine[index] += count


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A finished (or aborted) request."""

    request: RequestId
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    num_prompt: int
    num_cached: int  # of the prompt, found in the cache
    preemptions: int  # times it lost its place and was recomputed
    seed: int
    runs: tuple[int, ...]  # tokens kept of each cycle
    statistics: Statistics
    prefill_s: float
    decode_s: float
    logprobs: tuple[Logprobs, ...] | None = None  # of every token, where they were asked for
    prompt_logprobs: tuple[Logprobs, ...] | None = None  # of the prompt's but the first, where they were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """News of a request after a step."""

    request: RequestId
    new_tokens: tuple[int, ...]
    accepted: int  # of the new tokens, drafted ones
    logprobs: tuple[Logprobs, ...] | None = None  # of the new tokens, where they were asked for
    prompt_logprobs: tuple[Logprobs, ...] | None = None  # as in Answer, with the first token
    answer: Answer | None = None  # set when the request ended


def _grow(counts: list[int], length: int) -> None:
    counts.extend([0] * (length - len(counts)))
