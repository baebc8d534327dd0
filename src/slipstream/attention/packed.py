"""Attention over few rows of each of many requests (a batch's decode or chain rows), on a CPU in fp32.

The rows of all requests stand in one list, kv head by kv head, and every operation takes that list whole, except the
products: they run request by request, from views of the pool into views of the list. They are the products of
`attend_shared` over the same blocks, so a row's result is the same bits.

Shape letters: T packed rows, R rows of one request, H heads, G kv heads, g = H / G, K head width, M listed rows of one
kv head, N = G * M listed rows of one request, or of several together, L keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from slipstream.attention.interface import AttentionShape
from slipstream.attention.pool import KVPool, SlotRun
from slipstream.attention.sequence import SequenceRows, seen_mask
from slipstream.kernels.reference import KEY_BLOCK, MIN_QUERY_ROWS


@dataclass(frozen=True, slots=True)
class Listed:
    """Where one request's rows stand in the list, the last row repeated until M is at least MIN_QUERY_ROWS."""

    rows: SequenceRows
    start: int  # listed rows [start, stop)
    stop: int
    heads_N: Tensor  # which head of the T * H packed ones stands at each place
    places_RH: Tensor  # the place of each of the request's own


@dataclass(frozen=True, slots=True)
class Piece:
    """One request's views of the buffers."""

    run: SlotRun
    queries_GMK: Tensor
    scores_GML: Tensor
    weights: tuple[Tensor, ...]  # [G, M, KEY_BLOCK] of each block of keys
    out_GMK: Tensor


@dataclass(frozen=True, slots=True)
class Stretch:
    """The requests that read equally many keys; they stand together in the list."""

    num_keys: int
    mask_NL: Tensor
    scores_NL: Tensor
    weights_NL: Tensor
    pieces: tuple[Piece, ...]


class PackedRows:
    """The list and its buffers, made once for a forward and used by each of its layers."""

    def __init__(self, sequences: Sequence[SequenceRows], layer: AttentionShape) -> None:
        """sequences: in the order of their rows, which are all the rows that will be handed in."""
        assert len({rows.first for rows in sequences}) == 1, "one forward addresses all its requests alike"
        listed = list_rows(sequences, layer)
        self.heads_N = torch.cat([each.heads_N for each in listed])
        self.places_TH = torch.cat([each.places_RH for each in sorted(listed, key=lambda each: each.rows.start)])
        self.queries_NK, self.out_NK = self.heads_N.new_empty(
            (2, len(self.heads_N), layer.head_dim), dtype=torch.float32
        )
        newest_N = torch.cat([rows.addresses for rows in sequences])[self.heads_N // layer.num_heads]
        self.stretches = [
            self._stretch(tuple(group), newest_N, layer)
            for _, group in groupby(listed, key=lambda each: each.rows.num_keys)
        ]

    def __call__(self, pool: KVPool, layer: int, q_THK: Tensor) -> Tensor:
        """Attention of all rows: [T, H, K]."""
        width = q_THK.shape[-1]
        scaled = q_THK.reshape(-1, width) * width**-0.5
        torch.index_select(scaled, 0, self.heads_N, out=self.queries_NK)
        for stretch in self.stretches:
            views = [pool.views(layer, piece.run, stretch.num_keys) for piece in stretch.pieces]
            attend_pieces(stretch, views)
        return self.out_NK.index_select(0, self.places_TH).view(q_THK.shape)

    def _stretch(self, listed: tuple[Listed, ...], newest_N: Tensor, layer: AttentionShape) -> Stretch:
        first, begin, end = listed[0].rows, listed[0].start, listed[-1].stop
        mask_NL = seen_mask(newest_N[begin:end], first.num_keys, first=first.first, window=layer.window)
        scores_NL, weights_NL = torch.empty_like(mask_NL), torch.empty_like(mask_NL)

        def piece(each: Listed) -> Piece:
            def view(x: Tensor, start: int) -> Tensor:
                return x[start : start + each.stop - each.start].view(layer.num_kv_heads, -1, x.shape[1])

            return Piece(
                run=each.rows.run,
                queries_GMK=view(self.queries_NK, each.start),
                scores_GML=view(scores_NL, each.start - begin),
                weights=view(weights_NL, each.start - begin).split(KEY_BLOCK, dim=-1),
                out_GMK=view(self.out_NK, each.start),
            )

        return Stretch(first.num_keys, mask_NL, scores_NL, weights_NL, tuple(map(piece, listed)))


def attend_pieces(stretch: Stretch, views: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Fill the pieces' outputs; views: keys [G, K, L] and values [G, L, K] of each."""
    for piece, (k_GKL, _) in zip(stretch.pieces, views, strict=True):
        torch.bmm(piece.queries_GMK, k_GKL, out=piece.scores_GML)
    stretch.scores_NL.add_(stretch.mask_NL)
    torch.softmax(stretch.scores_NL, -1, out=stretch.weights_NL)
    for piece, (_, v_GLK) in zip(stretch.pieces, views, strict=True):
        torch.bmm(piece.weights[0], v_GLK.narrow(1, 0, KEY_BLOCK), out=piece.out_GMK)
        for block in range(1, len(piece.weights)):
            piece.out_GMK.add_(torch.bmm(piece.weights[block], v_GLK.narrow(1, block * KEY_BLOCK, KEY_BLOCK)))


def list_rows(sequences: Sequence[SequenceRows], layer: AttentionShape) -> list[Listed]:
    """The requests in the order of the list: those that read fewer keys first."""
    orders = {count: head_order(count, layer) for count in {rows.num_rows for rows in sequences}}
    num_before, found, start = 0, [], 0
    starts: dict[int, int] = {}
    for index, rows in enumerate(sequences):
        starts[index] = num_before
        num_before += rows.num_rows
    for index in sorted(starts, key=lambda index: sequences[index].num_keys):
        heads_N, places_RH = orders[sequences[index].num_rows]
        stop = start + heads_N.shape[0]
        heads_N = heads_N + starts[index] * layer.num_heads
        found.append(Listed(sequences[index], start, stop, heads_N, places_RH + start))
        start = stop
    return found


def head_order(num_rows: int, layer: AttentionShape) -> tuple[Tensor, Tensor]:
    """Which of R * H heads stands at each listed place [N], and the place of each [R * H]."""
    group = layer.num_heads // layer.num_kv_heads
    padded_rows = max(num_rows, -(-MIN_QUERY_ROWS // group))
    rows_P = torch.arange(padded_rows).clamp(max=num_rows - 1)
    kv_heads_G, heads_g = torch.arange(layer.num_kv_heads), torch.arange(group)
    heads_GPg = kv_heads_G[:, None, None] * group + rows_P[:, None] * layer.num_heads + heads_g
    places_GRg = (kv_heads_G[:, None, None] * padded_rows + torch.arange(num_rows)[:, None]) * group + heads_g
    return heads_GPg.flatten(), places_GRg.transpose(0, 1).flatten()
