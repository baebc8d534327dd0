"""Accept length over K: from acceptance by position, from one measured accept length, or from what drafts usually do.

With constant conditional acceptance p a chain of K steps has accept length (1 - p^(K+1)) / (1 - p)
(Leviathan et al., arXiv 2211.17192, eq. 1).
"""

from collections.abc import Sequence

MIN_P, MAX_P = 0.0, 0.9999


def chain_length(p: float, steps: int) -> float:
    """Accept length of a chain of so many steps under constant conditional acceptance p."""
    p = min(max(p, MIN_P), MAX_P)
    return (1 - p ** (steps + 1)) / (1 - p)


def constant_p(accept_length: float, steps: int) -> float:
    """The conditional acceptance that gives an accept length at so many steps, by bisection.

    Raises:
        ValueError: no chain of so many steps can have it.
    """
    if steps < 1:
        raise ValueError(f"accept length {accept_length:g} was measured at {steps} steps; it needs at least one")
    if not 1.0 <= accept_length <= steps + 1:
        raise ValueError(
            f"accept length {accept_length:g} at {steps} steps: it lies between 1 and {steps + 1}, because it counts"
            f" the target's own token"
        )
    low, high = MIN_P, MAX_P
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chain_length(middle, steps) < accept_length else (low, middle)
    return (low + high) / 2


def by_position_length(reached: Sequence[float], steps: int) -> float:
    """Accept length from P(position i accepted): 1 + their sum; beyond the last, its conditional acceptance holds on.

    Args:
        reached: P(position 1..i all accepted), as .645,.393,.240: falling, not conditional.
    """
    length, held = 1.0, 1.0
    ratio = reached[-1] / reached[-2] if len(reached) > 1 and reached[-2] > 0 else reached[-1]
    for place in range(steps):
        held = reached[place] if place < len(reached) else held * ratio
        length += held
    return length


def check_positions(reached: Sequence[float]) -> None:
    """Refuse what is no chain of probabilities.

    Raises:
        ValueError: naming the value.
    """
    before = 1.0
    for place, value in enumerate(reached, 1):
        if not 0 <= value <= before:
            raise ValueError(
                f"acceptance by position {place} is {value:g}; each lies between 0 and the one before it, because"
                f" position {place} counts only where all before it were accepted"
            )
        before = value
