"""How a prompt is run among others: its priority, and how far it may speculate."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """Of one prompt; all of its answers share it."""

    priority: int = 0  # lower runs first; among equals the one that came first
    steps: int | None = None  # the most draft steps of a cycle; None = the engine's, 0 = no speculation


USUAL = Manner()


def manners_for(
    priority: int | Sequence[int], steps: int | Sequence[int | None] | None, *, count: int, most_steps: int
) -> list[Manner]:
    """One manner for each of `count` prompts; what was given once holds for all. most_steps: of the engine's cycle.

    Raises:
        ValueError: lists of another length, a priority that is no whole number, or steps that no cycle has.
    """
    priorities = _each("priority", priority, count)
    limits = _each("steps", steps, count)
    manners: list[Manner] = []
    for place, (first, limit) in enumerate(zip(priorities, limits, strict=True)):
        with naming(place, count):
            check_priority(first)
            check_steps(limit, most_steps)
        manners.append(Manner(priority=first, steps=limit))
    return manners


@contextmanager
def naming(place: int, count: int) -> Iterator[None]:
    """Say which of several prompts a refusal is about, counted from 1."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"prompt {place + 1} of {count}: {error}" if count > 1 else str(error)) from None


def check_priority(priority: int) -> None:
    """Raises ValueError for what is no whole number."""
    if not _is_whole(priority):
        raise ValueError(f"priority is a whole number (lower runs first), not {priority!r}")


def check_steps(steps: int | None, most_steps: int) -> None:
    """Refuse steps that a cycle of `most_steps` cannot have.

    Raises:
        ValueError: no whole number, negative, or more than the engine drafts.
    """
    if steps is None:
        return
    if not _is_whole(steps) or steps < 0:
        raise ValueError(f"steps is a whole number, 0 (no speculation) or more, not {steps!r}")
    if steps > most_steps:
        held = f"a cycle of this engine has {most_steps}" if most_steps else "this engine decodes plainly"
        raise ValueError(f"steps {steps} was asked for but {held}; lower it, or start the engine with more steps")


def _each(name: str, given: Value | Sequence[Value], count: int) -> Sequence[Value]:
    """What was given, for each prompt."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        return [cast("Value", given)] * count
    found = cast("Sequence[Value]", given)
    if len(found) != count:
        raise ValueError(f"{name} came {len(found)} times for {count} prompts; give one number, or one for each")
    return found


def _is_whole(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)
