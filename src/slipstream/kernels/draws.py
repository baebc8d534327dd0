"""What a head is asked to draw, and what it chose.

Shape letters: T rows.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How rows are sampled."""

    temperatures: Tensor  # fp32 [T]; 0 = greedy
    seeds: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]: where each row's token will stand
    first_id: int = 0  # of the shard of the vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best of each row over this shard."""

    values: Tensor  # fp32 [T]
    ids: Tensor  # int64 [T], counted within the shard, or the names of those
