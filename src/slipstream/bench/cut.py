"""Counts of an answer that had ended earlier than it did."""

from collections.abc import Sequence


def counts_until(num_tokens: int, runs: Sequence[int]) -> tuple[int, int]:
    """Cycles and emitted tokens of an answer that ended after num_tokens.

    As where an answer really ends, a cycle counts the tokens that were kept; the first token is the prefill's.
    """
    cycles, emitted, room = 0, 0, num_tokens - 1
    for run in runs:
        if emitted >= room:
            break
        cycles, emitted = cycles + 1, min(emitted + run, room)
    return cycles, emitted
