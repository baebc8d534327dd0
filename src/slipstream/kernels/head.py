"""The vocabulary head with the choice of a token fused: logits need not reach memory.

Each tile of the vocabulary leaves its best score and id for every row; a second kernel picks among the tiles. Scores
are the logits rounded to the weight's dtype, for sampled rows divided by the temperature and with noise added, as
`verify/distribution.py` computes them. Equal scores: the lowest id.

Shape letters: T rows, D inputs, V vocabulary (of a shard), B tiles of it.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.draws import Choice, Draws
from slipstream.kernels.gumbel import gumbel, noise_keys
from slipstream.kernels.launch import assert_rows, launch, power_of_two, shared_bytes
from slipstream.kernels.order import after_previous
from slipstream.kernels.plans import Plan, asked_ahead, default_plan, tile_for
from slipstream.kernels.skinny import weight_tiles
from slipstream.kernels.skinny_tile import accumulate, ask_ahead


@triton.jit(do_not_specialize=["num_rows", "first_id"])
def head_kernel(
    x: "Any",
    w: "Any",
    w_tiles: "Any",
    logits: "Any",
    best: "Any",
    ids: "Any",
    temperatures: "Any",
    seeds: "Any",
    positions: "Any",
    names: "Any",
    num_rows: "Any",
    first_id: "Any",
    NUM_OUT: tl.constexpr,
    NUM_IN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TMA: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One tile of the vocabulary for one tile of rows: its best score and id per row."""
    tile = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    outs = tile * BLOCK_O + tl.arange(0, BLOCK_O)
    if PDL and AHEAD > 0:
        ask_ahead(w, outs, NUM_OUT, NUM_IN, AHEAD, GATED=False)
    after_previous(PDL)
    sums, _ = accumulate(
        x, w, w_tiles, rows, num_rows, tile * BLOCK_O, 0, (NUM_IN + BLOCK_D - 1) // BLOCK_D,
        NUM_OUT, NUM_IN, BLOCK_T, BLOCK_O, BLOCK_D, 1, 0, TMA,
    )  # fmt: skip
    real = rows < num_rows
    rounded = sums.to(x.dtype.element_ty)
    if logits is not None:
        at = logits + rows.to(tl.int64)[None, :] * NUM_OUT + outs[:, None]
        tl.store(at, rounded, mask=(outs < NUM_OUT)[:, None] & real[None, :])
    scores = rounded.to(tl.float32)
    if temperatures is not None:
        temperature = tl.load(temperatures + rows, mask=real, other=0.0)[None, :]
        keys = noise_keys(tl.load(seeds + rows, mask=real, other=0), tl.load(positions + rows, mask=real, other=0))
        tokens = outs.to(tl.int64) + first_id
        if names is not None:
            tokens = tl.load(names + outs, mask=outs < NUM_OUT, other=0)
        noise = gumbel(keys[None, :], tokens[:, None])
        sampled = tl.div_rn(scores, tl.where(temperature > 0, temperature, 1.0)) + noise
        scores = tl.where(temperature > 0, sampled, scores)
    scores = tl.where((outs < NUM_OUT)[:, None], scores, float("-inf"))
    value, place = tl.max(scores, axis=0, return_indices=True, return_indices_tie_break_left=True)
    at = rows * tl.num_programs(1) + tile
    tl.store(best + at, value, mask=real)
    tl.store(ids + at, tile * BLOCK_O + place, mask=real)


@triton.jit
def pick_kernel(
    best: "Any",
    ids: "Any",
    names: "Any",
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
    best_id = tl.load(ids + start + tile).to(tl.int64)
    if names is not None:
        best_id = tl.load(names + best_id)
    tl.store(id_out + tl.program_id(0), best_id)


def choose_tokens(
    x_TD: Tensor,
    w_VD: Tensor,
    *,
    plan: Plan | None = None,
    draws: Draws | None = None,
    logits: Tensor | None = None,
    names: Tensor | None = None,
    pdl: bool = False,
) -> Choice:
    """argmax over x W^T, with noise where rows are sampled.

    logits: [T, V], filled if given. names: int64 [V], what the ids of W stand for, in the noise and in the choice.
    plan.split is not used: a vocabulary has tiles enough.
    """
    num_rows, (vocab, num_in) = x_TD.shape[0], w_VD.shape
    plan = replace(plan or default_plan(vocab, num_in), split=1)
    tile = tile_for(plan, num_rows, num_in, shared=shared_bytes(x_TD.device))
    plan, tiles = tile.plan, -(-vocab // tile.plan.block_out)
    assert_rows(x_TD, w_VD, logits, names)
    best = torch.empty(num_rows, tiles, device=x_TD.device, dtype=torch.float32)
    ids = torch.empty(num_rows, tiles, device=x_TD.device, dtype=torch.int32)
    launch(
        head_kernel, (-(-num_rows // tile.rows), tiles),
        x_TD, w_VD, weight_tiles(w_VD, plan), logits, best, ids,
        draws and draws.temperatures, draws and draws.seeds, draws and draws.positions, names,
        num_rows, draws.first_id if draws else 0,
        NUM_OUT=vocab, NUM_IN=num_in, BLOCK_T=tile.rows, BLOCK_O=plan.block_out, BLOCK_D=plan.block_in,
        TMA=plan.tma, AHEAD=asked_ahead(tile, num_in, num_bytes=w_VD.nbytes), PDL=pdl,
        num_warps=plan.warps, num_stages=plan.stages, launch_pdl=pdl,
    )  # fmt: skip
    choice = Choice(values=best.new_empty(num_rows), ids=ids.new_empty(num_rows, dtype=torch.int64))
    launch(
        pick_kernel, (num_rows,), best, ids, names, choice.values, choice.ids,
        NUM_TILES=tiles, CHUNK=power_of_two(tiles), PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return choice
