"""Log-probabilities that a request asked for, under two names: raw and processed.

A token of a prompt was not drawn, so nothing processed it: its two values are one.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token's log-probabilities at one position."""

    token: int
    raw: float  # as the model has it
    processed: float  # after bias, penalties, bans, temperature and filters; -inf for what they cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Of one emitted token, or of one of the prompt."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]  # the likeliest by their raw value, best first; the chosen one may be among them
