"""Fill parameters from a checkpoint with several readers at once, in pieces small enough to be held many times over.

checkpoint   [part 0 | part 1 | part 2]        each perhaps cut to a rank's rows or columns
                |  pieces of a few MB, read side by side, straight into their rows where nothing changes
parameter    [  rows of 0  | 1 | rows of 2 ]   allocated once, on its device
"""

import math
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.weights.memory import empty
from slipstream.weights.names import NameTable, Part, PartCut
from slipstream.weights.reader import TensorSource

NUM_READERS = min(8, 2 * (os.cpu_count() or 1))  # one waits for the disk while another copies
PIECE_ELEMENTS = 1 << 20  # of whole rows: what one reader holds when columns are cut or dtypes change
NUM_AHEAD = 2 * NUM_READERS  # pieces handed out before the oldest parameter is waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A few rows of a part, and the rows of the parameter that they become."""

    name: str  # of the checkpoint tensor
    cuts: tuple[PartCut, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filling:
    """A parameter, and the pieces of it that are on their way."""

    name: str
    value: Tensor
    pieces: tuple[Future[None], ...]


def read_parameters(
    source: TensorSource, table: NameTable, *, device: torch.device, dtype: torch.dtype
) -> Generator[tuple[str, Tensor], None, None]:
    """Give every parameter of the table, filled, in the table's order.

    Raises:
        ValueError: a file fails; of several failures the first in the table's order.
    """
    pool = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="weights")
    waiting: deque[_Filling] = deque()
    try:
        for name, parts in table.items():
            waiting.append(_begin(pool, source, name, parts, device=device, dtype=dtype))
            while sum(len(each.pieces) for each in waiting) > NUM_AHEAD and len(waiting) > 1:
                yield _finish(waiting.popleft())
        while waiting:
            yield _finish(waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(
    pool: ThreadPoolExecutor,
    source: TensorSource,
    name: str,
    parts: tuple[Part, ...],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> _Filling:
    num_rows = sum(part.own_shape[0] for part in parts)
    value = empty((num_rows, *parts[0].own_shape[1:]), device=device, dtype=dtype)
    pieces = tuple(pool.submit(_place_piece, source, piece, value[piece.start : piece.stop]) for piece in split(parts))
    return _Filling(name=name, value=value, pieces=pieces)


def _finish(filling: _Filling) -> tuple[str, Tensor]:
    for piece in filling.pieces:
        piece.result()
    return filling.name, filling.value


def split(parts: Iterable[Part]) -> Iterator[Piece]:
    """Cut stacked parts into pieces, in the order in which they lie."""
    start = 0
    for part in parts:
        columns = tuple(cut for cut in (part.cut,) if cut is not None and cut.dim != 0)
        rows = range(part.shape[0])
        if part.cut is not None and not columns:
            rows = range(part.cut.start, part.cut.stop)
        stride = max(1, PIECE_ELEMENTS // math.prod(part.shape[1:]))
        for first in rows[::stride]:
            last = min(first + stride, rows.stop)
            stop = start + last - first
            yield Piece(name=part.name, cuts=(PartCut(dim=0, start=first, stop=last), *columns), start=start, stop=stop)
            start = stop


def _place_piece(source: TensorSource, piece: Piece, rows: Tensor) -> None:
    """Read a piece into its rows; those of a device are filled through pinned memory, which its allocator reuses."""
    if rows.device.type == "cpu":
        source.read_into(rows, piece.name, *piece.cuts)
        return
    staged = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=rows.is_cuda)
    source.read_into(staged, piece.name, *piece.cuts)
    rows.copy_(staged)  # this reader waits for it while others read
