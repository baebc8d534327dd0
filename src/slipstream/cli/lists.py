"""Options that hold numbers with commas between them: by position, or as a set of sizes."""

from collections.abc import Callable
from typing import Any


def numbers(name: str, text: str, kind: Callable[[str], Any], *, low: float, high: float) -> tuple[Any, ...]:
    """Read `0.7,0.7,0.5`: every one counts, where it stands.

    Raises:
        ValueError: something else, or a number out of range.
    """
    try:
        found = tuple(kind(each.strip()) for each in text.split(","))
    except ValueError:
        raise ValueError(f"{name} is numbers with commas between them, not {text}") from None
    if any(not low <= each <= high for each in found):
        raise ValueError(f"{name} {text}: each lies between {low:.0f} and {high:.0f}")
    return found


def sizes(name: str, text: str, kind: Callable[[str], Any], *, low: float, high: float) -> tuple[Any, ...]:
    """Read `1,4,16`: what is tried, each once, in the order given.

    Raises:
        ValueError: as `numbers`.
    """
    return tuple(dict.fromkeys(numbers(name, text, kind, low=low, high=high)))
