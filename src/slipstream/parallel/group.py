"""The group of ranks a layer is cut over; a layer is handed one and never asks the world."""

from typing import Protocol

from torch import Tensor


class Group(Protocol):
    """A set of ranks that hold shares of the same layer."""

    rank: int
    size: int

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum x over the ranks; every rank gets the result."""
        ...


class SoloGroup:
    """One rank: the same path as many, without any communication."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return x: a sum over one rank."""
        return x
