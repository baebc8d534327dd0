"""The group of ranks a layer is cut over; a layer is handed one and never asks the world.

Every collective carries the name of what it sums or gathers, so that a cycle's communication can be listed.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor

from slipstream.kernels.mail import Mail


class Group(Protocol):
    """A set of ranks that hold shares of the same layer. Collectives are called by all ranks in one order."""

    @property
    def rank(self) -> int:
        """This rank's place, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def all_reduce(self, x: Tensor, name: str) -> Tensor:
        """Sum x over the ranks, in rank order; every rank gets the same bits. x may be overwritten."""
        ...

    def mailing(self, x: Tensor, op: str, name: str) -> AbstractContextManager[Mail | None]:
        """Around a kernel of the caller's that does `op` with x itself, through the mailboxes; None: use `op` instead.

        x: of the mailboxes' dtype to be summed, int64 to be gathered.
        """
        ...

    def all_gather(self, x: Tensor, name: str) -> Tensor:
        """Every rank's x, in rank order: [size, *x.shape]."""
        ...

    def broadcast(self, x: Tensor, name: str) -> Tensor:
        """Rank 0's x; the others give a tensor of its shape and dtype, which may be overwritten."""
        ...


class SoloGroup:
    """One rank: the same path as many, without any communication."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor, name: str) -> Tensor:
        """Return x: a sum over one rank."""
        return x

    def mailing(self, x: Tensor, op: str, name: str) -> AbstractContextManager[None]:
        """There is nobody to write to."""
        return nullcontext()

    def all_gather(self, x: Tensor, name: str) -> Tensor:
        """Return x alone."""
        return x[None]

    def broadcast(self, x: Tensor, name: str) -> Tensor:
        """Return x: it is rank 0's."""
        return x
