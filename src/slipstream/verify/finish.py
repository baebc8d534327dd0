"""The run is trimmed once: by whatever ends first of a stop string, a stop id, EOS, the grammar and the
length.

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


@runtime_checkable
class GrammarEnd(Protocol):
    """Follows a growing answer through its grammar (text/grammar.py)."""

    @property
    def ended(self) -> bool:
        """Whether the answer is complete."""
        ...

    @property
    def broken(self) -> bool:
        """Whether the grammar cannot be followed any further."""
        ...

    def push(self, token: int) -> bool:
        """Take the next token if the grammar allows it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """What is kept of a run."""

    tokens: tuple[int, ...]
    reason: FinishReason | None  # None: the request goes on


def trim(
    run: Sequence[int], *, room: int, stop_ids: Collection[int], matcher: Matcher, grammar: GrammarEnd | None = None
) -> Trimmed:
    """Keep a run up to its earliest end; a stop beats the length when one token is both.

    room: how many more tokens the request may get. stop_ids: EOS (unless ignored) and the request's own stop ids; the
    token that ends an answer is kept in its ids. grammar: where the answer follows one; an answer ends with it, and is
    given up (ABORT) where it breaks.
    """
    for count, token in enumerate(run[:room], start=1):
        stopped = matcher.push(token) or token in stop_ids
        if grammar is not None and not _goes_on(grammar, token):
            reason = FinishReason.STOP if stopped or not grammar.broken else FinishReason.ABORT
            return Trimmed(tokens=tuple(run[:count]), reason=reason)
        if stopped:
            return Trimmed(tokens=tuple(run[:count]), reason=FinishReason.STOP)
    if len(run) >= room:
        return Trimmed(tokens=tuple(run[:room]), reason=FinishReason.LENGTH)
    return Trimmed(tokens=tuple(run), reason=None)


def _goes_on(grammar: GrammarEnd, token: int) -> bool:
    grammar.push(token)
    return not (grammar.ended or grammar.broken)
