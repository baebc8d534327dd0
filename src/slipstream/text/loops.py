"""Where an answer begins to repeat itself; a small model decoding greedily does, and repetition is easy to draft."""

from collections.abc import Sequence

LOOP_GRAM = 16  # successive token ids that have occurred before in the answer


def loop_start(tokens: Sequence[int]) -> int | None:
    """How many tokens stand before the first repeated run of LOOP_GRAM; None for an answer that does not loop."""
    seen: set[tuple[int, ...]] = set()
    for start in range(len(tokens) - LOOP_GRAM + 1):
        gram = tuple(tokens[start : start + LOOP_GRAM])
        if gram in seen:
            return start
        seen.add(gram)
    return None
