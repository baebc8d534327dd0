"""The run is trimmed once: by whatever ends first of a stop string, a stop id, EOS and the length.

A pure function of its arguments; text enters through a matcher that text/ provides.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from slipstream.flow.output import FinishReason


@runtime_checkable
class Matcher(Protocol):
    """Finds stop strings in a growing answer."""

    def push(self, token_id: int) -> bool:
        """Take the next token; true when it completes a stop."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """What is kept of a run."""

    tokens: tuple[int, ...]
    reason: FinishReason | None  # None: the request goes on


def trim(run: Sequence[int], *, room: int, stop_ids: Collection[int], matcher: Matcher) -> Trimmed:
    """Keep a run up to its earliest end; a stop beats the length when one token is both.

    room: how many more tokens the request may get. stop_ids: EOS (unless ignored) and the request's own stop ids; the
    token that ends an answer is kept in its ids.
    """
    for count, token in enumerate(run[:room], start=1):
        if matcher.push(token) or token in stop_ids:
            return Trimmed(tokens=tuple(run[:count]), reason=FinishReason.STOP)
    if len(run) >= room:
        return Trimmed(tokens=tuple(run[:room]), reason=FinishReason.LENGTH)
    return Trimmed(tokens=tuple(run), reason=None)
