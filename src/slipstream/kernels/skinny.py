"""Skinny products x W^T for few rows, at the speed of reading W, with norm, residual and gated MLP fused.

Weights are the left operand of the matrix instruction and rows the right one, so the instruction's shape is set by the
weight tile; rows are its columns, which never mix. A split product leaves partial sums, and the last program to arrive
at a tile adds them in a fixed order.

Shape letters: T rows, D inputs, O outputs, P partial sums of squares of a row.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from slipstream.kernels.launch import assert_rows, empty_like_rows, has_warpgroups, is_hopper, launch, shared_bytes
from slipstream.kernels.order import after_previous
from slipstream.kernels.plans import Plan, Tile, Workspace, asked_ahead, default_plan, kept_inputs, tile_for
from slipstream.kernels.skinny_tile import (
    accumulate,
    add_kept,
    ask_ahead,
    collect,
    kept_weights,
    residual_tile,
    row_scales,
    row_squares,
    store_gated,
    store_rows,
)


@triton.jit(do_not_specialize=["num_rows"])
def skinny_kernel(
    x: "Any", w: "Any", w_tiles: "Any", out: "Any", partials: "Any", counts: "Any", bias: "Any", squares: "Any",
    residual: "Any", ready_weight: "Any", ready_squares: "Any", ready_scaled: "Any", num_rows: "Any", eps: "Any",
    NUM_OUT: tl.constexpr, NUM_IN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_D: tl.constexpr,
    SPLIT: tl.constexpr, NUM_SQUARES: tl.constexpr, GATED: tl.constexpr, TMA: tl.constexpr,
    AHEAD: tl.constexpr, KEPT: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """One tile of outputs (or the same tile of gate and up) for one tile of rows, over one part of the inputs."""
    tile, split = tl.program_id(1) // SPLIT, tl.program_id(1) % SPLIT
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)  # row tiles side by side: a weight tile is read once
    steps: tl.constexpr = ((NUM_IN + BLOCK_D - 1) // BLOCK_D + SPLIT - 1) // SPLIT
    first = split * steps * BLOCK_D
    outs = tile * BLOCK_O + tl.arange(0, BLOCK_O)
    if PDL and AHEAD > 0:
        ask_ahead(w + first, outs, NUM_OUT, NUM_IN, AHEAD, GATED)
    looped: tl.constexpr = steps - KEPT // BLOCK_D
    kept, x_kept, kept_ins = 0.0, 0.0, 0
    if KEPT > 0:
        kept_ins = first + looped * BLOCK_D + tl.arange(0, KEPT)
        kept = kept_weights(w, outs, kept_ins, NUM_OUT, NUM_IN)
    weight, before = 0.0, 0.0  # of the norm that follows; of the residual
    if ready_weight is not None:
        weight = tl.load(ready_weight + outs, outs < NUM_OUT, 0.0)
    after_previous(PDL)
    if EARLY and residual is not None:  # it arrives while weights do
        before = residual_tile(residual, rows, outs, num_rows, NUM_OUT)
    if NUM_SQUARES > 0:
        eight = row_squares(squares, rows, num_rows, BLOCK_T, NUM_SQUARES)
    if KEPT > 0:
        x_kept = tl.load(x + rows[:, None] * NUM_IN + kept_ins[None, :], (rows < num_rows)[:, None], 0.0)
    sums, ups = accumulate(
        x, w, w_tiles, rows, num_rows, tile * BLOCK_O, first, looped,
        NUM_OUT, NUM_IN, BLOCK_T, BLOCK_O, BLOCK_D, SPLIT, GATED, TMA,
    )  # fmt: skip
    if KEPT > 0:
        sums = add_kept(sums, kept, x_kept)
    place = tl.program_id(0) * (tl.num_programs(1) // SPLIT) + tile
    last = True
    if SPLIT > 1:
        size: tl.constexpr = BLOCK_T * BLOCK_O * (2 if GATED else 1)
        sums, ups, last = collect(
            sums, ups, partials + place * SPLIT * size, counts + place, split, num_rows - tl.program_id(0) * BLOCK_T,
            BLOCK_T, BLOCK_O, SPLIT, GATED,
        )  # fmt: skip
    if last:
        if NUM_SQUARES > 0:
            scales = row_scales(eight, eps, NUM_IN, BLOCK_T)
            sums *= scales[None, :]
            if GATED:
                ups *= scales[None, :]
        if GATED:
            store_gated(sums, ups, out, rows, num_rows, tile * BLOCK_O, NUM_OUT, BLOCK_O)
        else:
            rest = before
            if residual is not None and not EARLY:
                rest = residual_tile(residual, rows, outs, num_rows, NUM_OUT)
            store_rows(
                sums, out, bias, rest, weight, ready_squares, ready_scaled, rows, num_rows, tile,
                NUM_OUT, BLOCK_O, residual is not None, ready_weight is not None,
            )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rms:
    """The half of an RMS norm that a product does itself: its rows come times the norm's weight, it divides by rms."""

    squares: Tensor  # fp32 [T, P]: sums of squares of parts of each row, without the weight
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What a product leaves for the norm that follows."""

    weight: Tensor  # [O] of that norm
    squares: Tensor  # fp32 [T, O / plan.block_out], filled: each row's sums of squares by tile
    scaled: Tensor  # [T, O], filled: the rows times the weight


def skinny_linear(
    x_TD: Tensor,
    w_OD: Tensor,
    *,
    space: Workspace,
    plan: Plan | None = None,
    bias: Tensor | None = None,
    rms: Rms | None = None,
    residual: Tensor | None = None,
    ready: Ready | None = None,
    gated: bool = False,
    keep: bool = True,
    pdl: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """x W^T [T, O], or with `gated` silu(x G^T) * (x U^T) [T, O / 2] for W = (G; U).

    x_TD: contiguous [T, D]. w_OD: contiguous [O, D]. bias: [O]. rms: x is a norm's input times its weight. residual:
    [T, O], added after rounding; ready: what the norm of the sum needs.
    keep: few rows' programs may load weights into registers before they may begin; no bit depends on it.
    pdl: launch before the previous kernel ends; every kernel around must be ours or end its stream's work by itself.
    """
    plan = plan or default_plan(w_OD.shape[0] // (2 if gated else 1), w_OD.shape[1])
    num_rows, num_in = x_TD.shape
    num_out = w_OD.shape[0] // 2 if gated else w_OD.shape[0]
    assert_rows(x_TD, w_OD, residual, ready and ready.scaled, ready and ready.squares, rms and rms.squares)
    assert w_OD.shape[1] == num_in, "the weight takes rows of this width"
    if out is None:
        out = empty_like_rows(x_TD, num_rows, num_out)
    shared = shared_bytes(x_TD.device)
    tile = tile_for(plan, num_rows, num_in, shared=shared, gated=gated, keep_outs=ready is not None)
    plan, tiles = tile.plan, -(-num_out // tile.plan.block_out)
    kept = 0
    if keep and pdl and is_hopper(x_TD.device):
        kept = kept_inputs(tile, num_in, item_bytes=w_OD.element_size(), gated=gated)
    most = slab_rows(tile, space, num_columns=tiles * tile.plan.block_out * (2 if gated else 1))
    for first in range(0, num_rows, most):
        count = min(most, num_rows - first)
        launch(
            skinny_kernel, (-(-count // tile.rows), tiles * plan.split),
            x_TD[first:], w_OD, weight_tiles(w_OD, plan), out[first:], space.partials, space.counts, bias,
            rms and rms.squares[first:], None if residual is None else residual[first:], ready and ready.weight,
            ready and ready.squares[first:], ready and ready.scaled[first:], count,
            rms.eps if rms else 0.0,
            NUM_OUT=num_out, NUM_IN=num_in, BLOCK_T=tile.rows, BLOCK_O=plan.block_out, BLOCK_D=plan.block_in,
            SPLIT=plan.split, NUM_SQUARES=rms.squares.shape[1] if rms else 0, GATED=gated, TMA=plan.tma,
            AHEAD=asked_ahead(tile, num_in, num_bytes=w_OD.nbytes), KEPT=kept, EARLY=has_warpgroups(x_TD.device),
            PDL=pdl, num_warps=plan.warps, num_stages=plan.stages, launch_pdl=pdl,
        )  # fmt: skip
    return out


def slab_rows(tile: Tile, space: Workspace, *, num_columns: int) -> int:
    """Rows of one launch: as many as the workspace holds partial sums for; all without a split."""
    if tile.plan.split == 1:
        return 1 << 30
    row_tiles = space.partials.numel() // (num_columns * tile.plan.split * tile.rows)
    row_tiles = min(row_tiles, space.counts.numel() // (num_columns // tile.plan.block_out))
    assert row_tiles > 0, "the workspace holds the partial sums of a tile of rows"
    return row_tiles * tile.rows


def weight_tiles(w_OD: Tensor, plan: Plan) -> Any:
    """The weight as the tensor memory accelerator reads it, or None."""
    if not plan.tma:
        return None
    return TensorDescriptor.from_tensor(w_OD, [plan.block_out, plan.block_in])
