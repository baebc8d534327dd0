"""A group of threads in one process: the paths of many ranks, for tests."""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce

import torch
from torch import Tensor


class Exchange:
    """Where the threads of a group meet; a rank that never comes breaks it for all after `timeout_s`."""

    def __init__(self, size: int, *, timeout_s: float = 60) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=timeout_s)
        self._slots: list[Tensor | None] = [None] * size

    def all(self, rank: int, x: Tensor) -> list[Tensor]:
        """Everyone's x, in rank order."""
        self._slots[rank] = x.clone()  # its owner may overwrite x while others still read
        self._barrier.wait()
        found = [each for each in self._slots if each is not None]
        self._barrier.wait()  # nobody writes the next one before all have read
        return found

    def abort(self) -> None:
        """Wake everyone with an error."""
        self._barrier.abort()


class LoopbackGroup:
    """One thread's end of an exchange."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self.rank, self.size, self._exchange = rank, exchange.size, exchange

    def all_reduce(self, x: Tensor, name: str) -> Tensor:
        """Sum in rank order."""
        return reduce(torch.add, self._exchange.all(self.rank, x))

    def mailing(self, x: Tensor, op: str, name: str) -> AbstractContextManager[None]:
        """Threads have no mailboxes."""
        return nullcontext()

    def all_gather(self, x: Tensor, name: str) -> Tensor:
        """Everyone's x: [size, *x.shape]."""
        return torch.stack(self._exchange.all(self.rank, x))

    def broadcast(self, x: Tensor, name: str) -> Tensor:
        """Rank 0's x."""
        return self._exchange.all(self.rank, x)[0].clone()


def loopback(size: int) -> Sequence[LoopbackGroup]:
    """The ends of a group of `size` threads."""
    exchange = Exchange(size)
    return [LoopbackGroup(exchange, rank) for rank in range(size)]
