"""The vocabulary head with the choice of a token fused: logits need not reach memory.

Each tile of the vocabulary leaves its best score and id for every row; a second kernel picks among the tiles. Scores
are the logits rounded to the weight's dtype, for sampled rows divided by the temperature and with noise added, as
`verify/distribution.py` computes them. Equal scores: the lowest id.

Shape letters: T rows, D inputs, V vocabulary (of a shard), B tiles of it.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gumbel import gumbel, noise_keys
from slipstream.kernels.launch import assert_rows, launch, power_of_two
from slipstream.kernels.order import after_previous
from slipstream.kernels.plans import MOST_ROWS, Plan, default_plan
from slipstream.kernels.skinny import Norm, prefetch_of, weight_tiles
from slipstream.kernels.skinny_tile import accumulate, begin, row_scales


@triton.jit(do_not_specialize=["num_rows", "first_id"])
def head_kernel(
    x: "Any",
    w: "Any",
    w_tiles: "Any",
    logits: "Any",
    best: "Any",
    ids: "Any",
    norm_weight: "Any",
    squares: "Any",
    temperatures: "Any",
    seeds: "Any",
    positions: "Any",
    num_rows: "Any",
    first_id: "Any",
    eps: "Any",
    NUM_OUT: tl.constexpr,
    NUM_IN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_D: tl.constexpr,
    NUM_SQUARES: tl.constexpr,
    TMA: tl.constexpr,
    PDL: tl.constexpr,
    PREFETCH: tl.constexpr,
) -> None:
    """One tile of the vocabulary for one tile of rows: its best score and id per row."""
    tile = tl.program_id(0)
    rows = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    begin(w, tile * BLOCK_O, 0, NUM_OUT, NUM_IN, BLOCK_O, 0, PDL, PREFETCH)
    scales = row_scales(squares, rows, num_rows, eps, NUM_IN, BLOCK_T, NUM_SQUARES)
    sums, _ = accumulate(
        x, w, w_tiles, norm_weight, scales, rows, num_rows, tile * BLOCK_O, 0, (NUM_IN + BLOCK_D - 1) // BLOCK_D,
        NUM_OUT, NUM_IN, BLOCK_T, BLOCK_O, BLOCK_D, 1, NUM_SQUARES, 0, TMA,
    )  # fmt: skip
    outs = tile * BLOCK_O + tl.arange(0, BLOCK_O)
    real = rows < num_rows
    rounded = sums.to(x.dtype.element_ty)
    if logits is not None:
        at = logits + rows.to(tl.int64)[None, :] * NUM_OUT + outs[:, None]
        tl.store(at, rounded, mask=(outs < NUM_OUT)[:, None] & real[None, :])
    scores = rounded.to(tl.float32)
    if temperatures is not None:
        temperature = tl.load(temperatures + rows, mask=real, other=0.0)[None, :]
        keys = noise_keys(tl.load(seeds + rows, mask=real, other=0), tl.load(positions + rows, mask=real, other=0))
        noise = gumbel(keys[None, :], (outs.to(tl.int64) + first_id)[:, None])
        sampled = tl.div_rn(scores, tl.where(temperature > 0, temperature, 1.0)) + noise
        scores = tl.where(temperature > 0, sampled, scores)
    scores = tl.where((outs < NUM_OUT)[:, None], scores, float("-inf"))
    value, place = tl.max(scores, axis=0, return_indices=True, return_indices_tie_break_left=True)
    at = rows * tl.num_programs(0) + tile
    tl.store(best + at, value, mask=real)
    tl.store(ids + at, tile * BLOCK_O + place, mask=real)


@triton.jit
def pick_kernel(
    best: "Any",
    ids: "Any",
    value_out: "Any",
    id_out: "Any",
    NUM_TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """The best of a row's tiles."""
    after_previous(PDL)
    tiles = tl.arange(0, CHUNK)
    start = tl.program_id(0) * NUM_TILES
    scores = tl.load(best + start + tiles, mask=tiles < NUM_TILES, other=float("-inf"))
    value, tile = tl.max(scores, axis=0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(value_out + tl.program_id(0), value)
    tl.store(id_out + tl.program_id(0), tl.load(ids + start + tile).to(tl.int64))


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
    ids: Tensor  # int64 [T], counted within the shard


def choose_tokens(
    x_TD: Tensor,
    w_VD: Tensor,
    *,
    plan: Plan | None = None,
    norm: Norm | None = None,
    draws: Draws | None = None,
    logits: Tensor | None = None,
    pdl: bool = False,
) -> Choice:
    """argmax over x W^T, with noise where rows are sampled.

    logits: [T, V], filled if given. plan.split is not used: a vocabulary has tiles enough.
    """
    plan = plan or default_plan(*w_VD.shape)
    num_rows, (vocab, num_in) = x_TD.shape[0], w_VD.shape
    assert_rows(x_TD, w_VD)
    block_t = min(power_of_two(num_rows, least=16), MOST_ROWS)
    tiles = -(-vocab // plan.block_out)
    best = torch.empty(num_rows, tiles, device=x_TD.device, dtype=torch.float32)
    ids = torch.empty(num_rows, tiles, device=x_TD.device, dtype=torch.int32)
    launch(
        head_kernel, (tiles, -(-num_rows // block_t)),
        x_TD, w_VD, weight_tiles(w_VD, plan), logits, best, ids, norm and norm.weight, norm and norm.squares,
        draws and draws.temperatures, draws and draws.seeds, draws and draws.positions,
        num_rows, draws.first_id if draws else 0, norm.eps if norm else 0.0,
        NUM_OUT=vocab, NUM_IN=num_in, BLOCK_T=block_t, BLOCK_O=plan.block_out, BLOCK_D=plan.block_in,
        NUM_SQUARES=norm.squares.shape[1] if norm else 0, TMA=plan.tma, PDL=pdl,
        PREFETCH=prefetch_of(plan, num_in, pdl=pdl), num_warps=plan.warps, num_stages=plan.stages, launch_pdl=pdl,
    )  # fmt: skip
    choice = Choice(values=best.new_empty(num_rows), ids=ids.new_empty(num_rows, dtype=torch.int64))
    launch(
        pick_kernel, (num_rows,), best, ids, choice.values, choice.ids,
        NUM_TILES=tiles, CHUNK=power_of_two(tiles), PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return choice
