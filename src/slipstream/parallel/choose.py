"""At start-up, time the ways to all-reduce at this model's sizes and make a group that takes the fastest.

Over two ranks any way gives the same bits, so each size takes its fastest. Over more, only ways that add in one order
may be mixed, or a row's result would depend on how many rows travel with it: push, one-shot and two-shot. NCCL then
serves alone, where memory cannot be shared, and its order may change with the size; the report says so.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slipstream.kernels.mail import Mail
from slipstream.parallel.distributed import GLOO, RankGroup, SumOrder, rank_group
from slipstream.parallel.group import Group
from slipstream.parallel.symmetric import BUFFER_BYTES, DTYPES, SymmetricReducer, SymmetricUnavailable, open_symmetric
from slipstream.parallel.timing import message, time_calls

ANY_ORDER_SIZE = 2  # over so many ranks there is only one order


class AllReducePath(Enum):
    """A way to all-reduce."""

    NCCL = "nccl"
    ONE_SHOT = "one-shot"
    TWO_SHOT = "two-shot"
    PUSH = "push"


SYMMETRIC = (AllReducePath.ONE_SHOT, AllReducePath.TWO_SHOT, AllReducePath.PUSH)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRow:
    """What one message size takes, the slowest rank counting, and which way it goes."""

    num_bytes: int
    us: Mapping[AllReducePath, float]
    chosen: AllReducePath


@dataclass(frozen=True, slots=True, kw_only=True)
class PathReport:
    """The table a group was made from."""

    size: int  # ranks
    backend: str  # nccl or gloo
    rows: tuple[PathRow, ...]  # by size; empty where there was nothing to choose
    note: str  # why only the backend's own is used, or which ways could not be; empty if all were open

    def as_row(self) -> dict[str, Any]:
        """The same in plain JSON types."""
        rows = [
            {
                "bytes": row.num_bytes,
                "us": {path.value: round(us, 2) for path, us in row.us.items()},
                "chosen": row.chosen.value,
            }
            for row in self.rows
        ]
        return {"size": self.size, "backend": self.backend, "rows": rows, "note": self.note}


class MeasuredGroup:
    """A group whose all-reduces go the way that was fastest at their size; everything else is the backend's."""

    def __init__(self, backend: RankGroup, reducer: SymmetricReducer, rows: Sequence[PathRow]) -> None:
        self.rank, self.size = backend.rank, backend.size
        self.all_gather = backend.all_gather
        self._sizes = [row.num_bytes for row in rows]
        self._chosen = [row.chosen for row in rows]
        self._backend, self.reducer = backend, reducer
        # a dtype that the kernels lack still gets the one order
        order = SumOrder.BACKEND if backend.size <= ANY_ORDER_SIZE else SumOrder.RANKS
        self._others = RankGroup(backend.process_group, order=order)

    def path(self, num_bytes: int) -> AllReducePath:
        """Which way a size goes: that of the next larger one measured, or of the largest."""
        return self._chosen[min(bisect_left(self._sizes, num_bytes), len(self._sizes) - 1)]

    def all_reduce(self, x: Tensor, name: str) -> Tensor:
        """Sum x over the ranks; the way depends on its dtype and size alone, so all ranks take the same."""
        if x.dtype not in DTYPES or x.numel() == 0:
            return self._others.all_reduce(x, name)
        match self.path(x.nbytes):
            case AllReducePath.PUSH if x.dtype == self.reducer.mail.dtype:
                return self.reducer.push(x)
            case AllReducePath.ONE_SHOT | AllReducePath.PUSH:
                return self.reducer.one_shot(x)
            case AllReducePath.TWO_SHOT:
                return self.reducer.two_shot(x)
            case AllReducePath.NCCL:
                return self._backend.all_reduce(x, name)

    def broadcast(self, x: Tensor, name: str) -> Tensor:
        """Rank 0's x: few integers are pushed where small messages are, everything else is the backend's."""
        with self.mailing(x, "broadcast", name) as mail:
            return self._backend.broadcast(x, name) if mail is None else self.reducer.words_of_first(x)

    @contextmanager
    def mailing(self, x: Tensor, op: str, name: str) -> Iterator[Mail | None]:
        """The mailboxes, where x fits them and is fastest pushed."""
        fits = self.reducer.mail.takes(x) if op == "all_reduce" else self.reducer.mail.takes_words(x)
        yield self.reducer.mail if fits and self.path(x.nbytes) is AllReducePath.PUSH else None


def choose_group(
    process_group: dist.ProcessGroup | None,
    device: torch.device,
    *,
    sizes: Sequence[int],
    dtype: torch.dtype = torch.bfloat16,
    buffer_bytes: int = BUFFER_BYTES,
) -> tuple[Group, PathReport]:
    """Make the fastest group over some ranks; they call this together, outside any capture.

    sizes: bytes of the messages that decoding and verifying send.
    """
    assert sizes, "nothing to measure: give the sizes of a decode step's and a verify's messages"
    backend = rank_group(process_group)
    if dist.get_backend(backend.process_group) == GLOO:
        return backend, _only(backend, GLOO, "gloo gathers and adds in rank order")
    try:
        reducer = open_symmetric(backend.process_group, device, dtype=dtype, buffer_bytes=buffer_bytes)
    except SymmetricUnavailable as error:
        return backend, _only(backend, "nccl", f"{_alone(backend.size)}: {error}")
    calls = paths(backend, reducer)
    rows = [_measure(num_bytes, calls, backend, device, dtype) for num_bytes in sorted(set(sizes))]
    note = "" if backend.size <= ANY_ORDER_SIZE else "NCCL is timed but not used: its order changes with the size"
    report = PathReport(size=backend.size, backend="nccl", rows=tuple(rows), note=note)
    return MeasuredGroup(backend, reducer, rows), report


def usable(size: int) -> tuple[AllReducePath, ...]:
    """The ways that give one set of bits over so many ranks, whichever each size takes."""
    return tuple(AllReducePath) if size <= ANY_ORDER_SIZE else SYMMETRIC


def paths(backend: RankGroup, reducer: SymmetricReducer) -> dict[AllReducePath, Callable[[Tensor], Tensor]]:
    """Every way to all-reduce, by name."""
    return {
        AllReducePath.NCCL: lambda x: backend.all_reduce(x, "timing"),
        AllReducePath.ONE_SHOT: reducer.one_shot,
        AllReducePath.TWO_SHOT: reducer.two_shot,
        AllReducePath.PUSH: reducer.push,
    }


def slowest(us: Sequence[float], process_group: dist.ProcessGroup, device: torch.device) -> list[float]:
    """Each time as the slowest rank saw it, the same on all ranks."""
    times = torch.tensor(us, dtype=torch.float64, device=device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=process_group)
    return times.tolist()  # sync: once, before anything is served


def _measure(
    num_bytes: int,
    calls: Mapping[AllReducePath, Callable[[Tensor], Tensor]],
    backend: RankGroup,
    device: torch.device,
    dtype: torch.dtype,
) -> PathRow:
    x = message(num_bytes, dtype, device)
    mine = [time_calls(lambda call=call: call(x), device) for call in calls.values()]
    us = dict(zip(calls, slowest(mine, backend.process_group, device)))
    fastest = min(usable(backend.size), key=us.__getitem__)
    # One rank decides: equal numbers would choose alike, but a choice that differs would hang the group.
    place = torch.tensor([list(AllReducePath).index(fastest)], device=device)
    agreed = int(backend.broadcast(place, "all-reduce path").item())  # sync: once, before anything is served
    return PathRow(num_bytes=num_bytes, us=us, chosen=list(AllReducePath)[agreed])


def _only(backend: RankGroup, name: str, note: str) -> PathReport:
    return PathReport(size=backend.size, backend=name, rows=(), note=note)


def _alone(size: int) -> str:
    if size <= ANY_ORDER_SIZE:
        return "NCCL alone"
    return f"NCCL alone, whose order of sums over {size} ranks may change with the number of rows"
