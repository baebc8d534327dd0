"""Fill parameters from a checkpoint with several readers at once, in pieces small enough to be held many times over.

    checkpoint   [part 0 | part 1 | part 2]        each perhaps cut to a rank's rows or columns
                    |  pieces of a few MB, side by side, straight into their rows where nothing changes
    parameter    [  rows of 0  | 1 | rows of 2 ]   allocated once, on its device

Pieces are taken in the order in which they lie in the files: a disk gives twice as much when it can read ahead.
"""

import math
import os
from collections import Counter, deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from slipstream.weights.memory import empty
from slipstream.weights.names import NameTable, Part, PartCut
from slipstream.weights.reader import TensorSource

NUM_READERS = max(2, min(8, os.cpu_count() or 1))  # one waits for the disk while another copies
PIECE_ELEMENTS = 1 << 20  # of whole rows: what one reader holds when columns are cut or dtypes change
NUM_AHEAD = 2 * NUM_READERS  # pieces handed out before the oldest is waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A few rows of a part, and the rows of the parameter that they become."""

    parameter: str
    name: str  # of the checkpoint tensor
    cuts: tuple[PartCut, ...]
    start: int
    stop: int


@dataclass(slots=True, kw_only=True)
class _Pending:
    """What is still to come, and the failure that will be told."""

    turns: dict[str, int]  # a parameter's place in the table
    missing: Counter[str]  # its pieces that are not there yet
    flying: deque[tuple[Piece, Future[None]]] = field(default_factory=deque)
    failed: tuple[int, ValueError] | None = None

    def wanted(self, piece: Piece) -> bool:
        """Whether a piece matters: after a failure only what stands before it in the table, which may fail too."""
        return self.failed is None or self.turns[piece.parameter] < self.failed[0]

    def settle(self) -> str | None:
        """Wait for the oldest piece; give its parameter's name if that is now whole."""
        piece, future = self.flying.popleft()
        try:
            future.result()
        except ValueError as error:
            if self.wanted(piece):
                self.failed = self.turns[piece.parameter], error
        self.missing[piece.parameter] -= 1
        return piece.parameter if self.failed is None and not self.missing[piece.parameter] else None


def read_parameters(
    source: TensorSource, table: NameTable, *, device: torch.device, dtype: torch.dtype
) -> Generator[tuple[str, Tensor], None, None]:
    """Give every parameter of the table as it gets filled.

    Raises:
        ValueError: a file fails; of several failures the first in the table's order.
    """
    pieces = in_file_order(source, table)
    pending = _Pending(
        turns={name: turn for turn, name in enumerate(table)}, missing=Counter(piece.parameter for piece in pieces)
    )
    values: dict[str, Tensor] = {}
    with ThreadPoolExecutor(NUM_READERS, thread_name_prefix="weights") as pool:
        for piece in pieces:
            if not pending.wanted(piece):
                continue
            if piece.parameter not in values:
                values[piece.parameter] = empty(shape_of(table[piece.parameter]), device=device, dtype=dtype)
            rows = values[piece.parameter][piece.start : piece.stop]
            pending.flying.append((piece, pool.submit(_fill, source, piece, rows)))
            if len(pending.flying) >= NUM_AHEAD and (name := pending.settle()):
                yield name, values.pop(name)
        while pending.flying:
            if name := pending.settle():
                yield name, values.pop(name)
    if pending.failed is not None:
        raise pending.failed[1]


def shape_of(parts: tuple[Part, ...]) -> tuple[int, ...]:
    """The shape of stacked parts."""
    return (sum(part.own_shape[0] for part in parts), *parts[0].own_shape[1:])


def in_file_order(source: TensorSource, table: NameTable) -> list[Piece]:
    """Cut every part of a table into pieces, and give them as they lie in the files."""
    placed: list[tuple[tuple[str, int], str, Part, int]] = []
    for parameter, parts in table.items():
        start = 0
        for part in parts:
            placed.append((source.position(part.name), parameter, part, start))
            start += part.own_shape[0]
    placed.sort(key=lambda each: each[0])
    return [piece for _, parameter, part, start in placed for piece in _split(parameter, part, start)]


def _split(parameter: str, part: Part, start: int) -> Iterator[Piece]:
    """Cut one part into pieces, of which the first becomes the parameter's rows from `start`."""
    columns = tuple(cut for cut in (part.cut,) if cut is not None and cut.dim != 0)
    rows = range(part.shape[0])
    if part.cut is not None and not columns:
        rows = range(part.cut.start, part.cut.stop)
    stride = max(1, PIECE_ELEMENTS // math.prod(part.shape[1:]))
    for first in rows[::stride]:
        last = min(first + stride, rows.stop)
        cuts = (PartCut(dim=0, start=first, stop=last), *columns)
        stop = start + last - first
        yield Piece(parameter=parameter, name=part.name, cuts=cuts, start=start, stop=stop)
        start = stop


def _fill(source: TensorSource, piece: Piece, rows: Tensor) -> None:
    """Read a piece into its rows; those of a device are filled through pinned memory, which its allocator reuses."""
    if rows.device.type == "cpu":
        source.read_into(rows, piece.name, *piece.cuts)
        return
    staged = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=rows.is_cuda)
    source.read_into(staged, piece.name, *piece.cuts)
    rows.copy_(staged)  # this reader waits for it while others read
