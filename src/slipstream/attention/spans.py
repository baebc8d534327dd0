"""Causal rows of several requests where kernels attend: contexts of prompts, and what waits for a draft.

Rows that stand at a position below SHORT take our kernels, which launch twice a layer and give a row the bits that
decoding gives it, however the context is cut and whatever comes with it; rows beyond take torch's attention, whose
arithmetic is faster.

Shape letters: T packed rows, R rows of one request, H heads, K head width, L entries of a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.attention.interface import Attend, AttentionShape, RopeTable
from slipstream.attention.kernel import turned
from slipstream.attention.paged import PagedAttend
from slipstream.attention.pool import KVPool
from slipstream.attention.sequence import SequenceRows
from slipstream.kernels.keys import Keys
from slipstream.kernels.paged import paged_attention

SHORT = 1024  # positions: below, a prompt waits for the host's launches, above for arithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows of one request that attend in one way: as the kernels' `keys` say, or as number `index` of torch's."""

    rows: slice
    keys: Keys | None = None
    index: int = 0


@dataclass(slots=True)
class SpanAttend(Attend):
    """Attend over a pool for one forward; entries of all rows are stored first, by one kernel."""

    pool: KVPool
    pdl: bool
    positions_T: Tensor  # for RoPE
    own: Keys  # where each row's entry goes
    pieces: tuple[Piece, ...]
    beyond: PagedAttend  # the rows from SHORT on

    def __call__(self, layer: AttentionShape, qkv_TC: Tensor, rope: RopeTable) -> Tensor:
        """Store the rows' entries, then attend: [T, H * K]."""
        q_THK = turned(self.pool, self.own, layer, qkv_TC, rope, pdl=self.pdl)
        outputs = [self._attend(layer, piece, q_THK[piece.rows]) for piece in self.pieces]
        out_THK = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return out_THK.reshape(qkv_TC.shape[0], -1)

    def _attend(self, layer: AttentionShape, piece: Piece, q_RHK: Tensor) -> Tensor:
        if piece.keys is None:
            return self.beyond.attend_rows(layer, piece.index, q_RHK)
        keys = piece.keys if layer.window is None else replace(piece.keys, window=layer.window)
        entries = (self.pool.keys[layer.index], self.pool.values[layer.index])
        return paged_attention(q_RHK, *entries, keys, arrivals=self.pool.arrivals, pdl=self.pdl)


def span_attend(
    pool: KVPool, pdl: bool, positions_T: Tensor, slots_T: Tensor, sequences: Sequence[SequenceRows]
) -> SpanAttend:
    """The backend for causal rows; everything it reads on the device stands ready before the forward begins."""
    pieces: list[Piece] = []
    beyond: list[SequenceRows] = []
    for rows in sequences:
        short = max(0, min(rows.num_rows, SHORT + rows.first - (rows.last + 1 - rows.num_rows)))
        cut = rows.start + short
        if short:
            pieces.append(Piece(rows=slice(rows.start, cut), keys=_keys_of(rows, short)))
        if short < rows.num_rows:
            pieces.append(Piece(rows=slice(cut, rows.stop), index=len(beyond)))
            beyond.append(replace(rows, start=cut, addresses=rows.addresses[short:]))
    own = Keys(
        pages=slots_T[:, None].int(),
        page=1,
        newest=positions_T[:, None],
        most=1,
        writes=torch.zeros_like(positions_T)[:, None],
    )
    by_torch = PagedAttend(pool, positions_T, slots_T, tuple(beyond))
    return SpanAttend(pool, pdl, positions_T, own, tuple(pieces), by_torch)


def _keys_of(rows: SequenceRows, short: int) -> Keys:
    newest_1R, most = rows.addresses[None, :short], rows.last + 1 - (rows.num_rows - short)
    slots_1L = rows.run.slots[None, :most].int()
    return Keys(pages=slots_1L, page=1, newest=newest_1R, most=most, first=rows.first)
