"""What a user gets back: an answer in text, its counts and its times."""

from dataclasses import dataclass

from slipstream.flow.logprobs import Logprobs
from slipstream.flow.output import Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer."""

    prompt: str  # as it was run: after the chat template, when one was applied
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str  # stop, length or abort
    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt, found in the prefix cache
    seed: int  # the one that was used, given or drawn
    runs: tuple[int, ...]  # tokens kept of each cycle; their sum is the answer without its first token
    statistics: Statistics
    prefill_s: float
    decode_s: float
    index: int = 0  # which of the n answers to its prompt
    logprobs: tuple[Logprobs, ...] | None = None  # of every token, where they were asked for
    prompt_logprobs: tuple[Logprobs, ...] | None = None  # of the prompt's but the first, where they were asked for

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens after the first, over the time of their cycles."""
        return self.statistics.emitted / self.decode_s if self.decode_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A piece of a streamed answer: what one cycle made certain."""

    text: str
    token_ids: tuple[int, ...]
    accepted: int  # how many of the tokens were drafted
    logprobs: tuple[Logprobs, ...] | None = None  # of these tokens, where they were asked for
    completion: Completion | None = None  # with the last piece
