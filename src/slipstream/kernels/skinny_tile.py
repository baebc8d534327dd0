"""Parts of the skinny products: a tile's sums, split sums brought together, what is stored.

Tiles are [O, T]: weights are the left operand of the matrix instruction.

Shape letters: T rows, D inputs, O outputs, P partial sums of squares of a row.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false
# pyright: reportAssignmentType=false

from typing import Any

import triton
import triton.language as tl

from slipstream.kernels.order import held


@triton.jit
def row_squares(squares: "Any", rows: "Any", num_rows: "Any", BLOCK_T: tl.constexpr, NUM_SQUARES: tl.constexpr) -> Any:
    """Sums of squares [T, 8] of rows' parts [T, P]: every eighth part, added in turn."""
    part, real = tl.arange(0, 8), (rows < num_rows)[:, None]
    eight = tl.zeros((BLOCK_T, 8), tl.float32)
    for first in tl.static_range(0, NUM_SQUARES, 8):
        at = squares + rows[:, None] * NUM_SQUARES + (first + part)[None, :]
        eight += tl.load(at, mask=real & (first + part < NUM_SQUARES)[None, :], other=0.0)
    return eight


@triton.jit
def row_scales(eight: "Any", eps: "Any", NUM_IN: tl.constexpr, BLOCK_T: tl.constexpr) -> Any:
    """1 / rms of each row [T]: the eight added as a tree, so in one order whatever the tile."""
    eight = held(eight)
    even, odd = tl.split(tl.reshape(eight, (BLOCK_T, 4, 2)))
    even, odd = tl.split(tl.reshape(even + odd, (BLOCK_T, 2, 2)))
    even, odd = tl.split(even + odd)
    return 1.0 / tl.sqrt((even + odd) / NUM_IN + eps)


@triton.jit
def first_weights(w: "Any", outs: "Any", NUM_OUT: tl.constexpr, NUM_IN: tl.constexpr) -> Any:
    """Where some outputs' weights begin [O, 1]; the last output's stand for those beyond."""
    return w + tl.minimum(outs, NUM_OUT - 1).to(tl.int64)[:, None] * NUM_IN


@triton.jit
def ask_ahead(
    w: "Any",
    outs: "Any",
    NUM_OUT: tl.constexpr,
    NUM_IN: tl.constexpr,
    AHEAD: tl.constexpr,
    GATED: tl.constexpr,
) -> None:
    """Have the first AHEAD inputs of some outputs' weights come to the L2 while the kernel in front still runs."""
    half: tl.constexpr = AHEAD // 2
    at = first_weights(w, outs, NUM_OUT, NUM_IN) + (tl.arange(0, 2) * half)[None, :]
    num_bytes = tl.zeros(at.shape, tl.int32) + half * (w.dtype.element_ty.primitive_bitwidth // 8)
    asked: tl.constexpr = "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(asked, "=r,l,r", [at, num_bytes], tl.int32, is_pure=False, pack=1)
    if GATED:
        ups = at + NUM_OUT * NUM_IN
        tl.inline_asm_elementwise(asked, "=r,l,r", [ups, num_bytes], tl.int32, is_pure=False, pack=1)


@triton.jit
def kept_weights(w: "Any", outs: "Any", ins: "Any", NUM_OUT: tl.constexpr, NUM_IN: tl.constexpr) -> Any:
    """Some outputs' weights [O, D] for a program's last inputs, in registers until they are multiplied."""
    return tl.load(first_weights(w, outs, NUM_OUT, NUM_IN) + ins[None, :], eviction_policy="evict_first")


@triton.jit
def add_kept(sums: "Any", kept: "Any", x_tile: "Any") -> Any:
    """Add the products of what was kept, weights [O, D] and rows [T, D], to sums [O, T]: the same bits as in the loop.

    Held, neither is copied to shared memory, and so waited for, before here.
    """
    return tl.dot(held(kept), tl.trans(held(x_tile)), sums, input_precision="ieee")


@triton.jit
def accumulate(
    x: "Any",
    w: "Any",
    w_tiles: "Any",
    rows: "Any",
    num_rows: "Any",
    first_out: "Any",
    first_in: "Any",
    steps: tl.constexpr,
    NUM_OUT: tl.constexpr,
    NUM_IN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLIT: tl.constexpr,
    GATED: tl.constexpr,
    TMA: tl.constexpr,
) -> Any:
    """Sums [O, T] over `steps` blocks of inputs in order, and the same tile of the second half of W if gated."""
    sums = tl.zeros((BLOCK_O, BLOCK_T), tl.float32)
    ups = tl.zeros((BLOCK_O, BLOCK_T) if GATED else (1, 1), tl.float32)
    outs = tl.minimum(first_out + tl.arange(0, BLOCK_O), NUM_OUT - 1).to(tl.int64)
    for step in range(steps):
        ins = first_in + step * BLOCK_D + tl.arange(0, BLOCK_D)
        within = ins < NUM_IN
        x_tile = tl.load(x + rows[:, None] * NUM_IN + ins[None, :], (rows < num_rows)[:, None] & within[None, :], 0.0)
        if TMA:
            w_tile = w_tiles.load([first_out, first_in + step * BLOCK_D])
            up_row = NUM_OUT + first_out
        elif NUM_IN % (BLOCK_D * SPLIT) == 0:
            w_tile = tl.load(w + outs[:, None] * NUM_IN + ins[None, :], eviction_policy="evict_first")
        else:
            w_tile = tl.load(w + outs[:, None] * NUM_IN + ins[None, :], within[None, :], 0.0)
        sums = tl.dot(w_tile, tl.trans(x_tile), sums, input_precision="ieee")
        if GATED:
            if TMA:
                up_tile = w_tiles.load([up_row, first_in + step * BLOCK_D])
            elif NUM_IN % (BLOCK_D * SPLIT) == 0:
                up_at = w + (outs[:, None] + NUM_OUT) * NUM_IN + ins[None, :]
                up_tile = tl.load(up_at, eviction_policy="evict_first")
            else:
                up_tile = tl.load(w + (outs[:, None] + NUM_OUT) * NUM_IN + ins[None, :], within[None, :], 0.0)
            ups = tl.dot(up_tile, tl.trans(x_tile), ups, input_precision="ieee")
    return sums, ups


@triton.jit
def collect(
    sums: "Any",
    ups: "Any",
    partials: "Any",
    count: "Any",
    split: "Any",
    num_rows: "Any",
    BLOCK_T: tl.constexpr,
    BLOCK_O: tl.constexpr,
    SPLIT: tl.constexpr,
    GATED: tl.constexpr,
) -> Any:
    """Leave this part's sums; the last program of the tile adds all parts, first part first."""
    size: tl.constexpr = BLOCK_T * BLOCK_O
    columns = tl.arange(0, BLOCK_T)
    at = partials + tl.arange(0, BLOCK_O)[:, None] + columns[None, :] * BLOCK_O
    used = (columns < num_rows)[None, :] & (tl.arange(0, BLOCK_O) >= 0)[:, None]
    tl.store(at + split * size, sums, mask=used)
    if GATED:
        tl.store(at + (SPLIT + split) * size, ups, mask=used)
    tl.debug_barrier()  # all threads' parts are stored before the count says so
    last = tl.atomic_add(count, 1, sem="acq_rel") == SPLIT - 1
    if last:
        tl.store(count, 0)
        sums = tl.zeros((BLOCK_O, BLOCK_T), tl.float32)
        for part in tl.static_range(SPLIT):
            sums += tl.load(at + part * size, mask=used, other=0.0, cache_modifier=".cg")
        if GATED:
            ups = tl.zeros((BLOCK_O, BLOCK_T), tl.float32)
            for part in tl.static_range(SPLIT):
                ups += tl.load(at + (SPLIT + part) * size, mask=used, other=0.0, cache_modifier=".cg")
    return sums, ups, last


@triton.jit
def residual_tile(residual: "Any", rows: "Any", outs: "Any", num_rows: "Any", NUM_OUT: tl.constexpr) -> Any:
    """What is added to a tile [O, T]. Where it is loaded decides in which layout a tile's squares are summed."""
    used = (outs < NUM_OUT)[:, None] & (rows < num_rows)[None, :]
    return tl.load(residual + rows[None, :] * NUM_OUT + outs[:, None], mask=used, other=0.0)


@triton.jit
def store_rows(
    sums: "Any",
    out: "Any",
    bias: "Any",
    before: "Any",
    weight: "Any",
    ready_squares: "Any",
    ready_scaled: "Any",
    rows: "Any",
    num_rows: "Any",
    tile: "Any",
    NUM_OUT: tl.constexpr,
    BLOCK_O: tl.constexpr,
    RESIDUAL: tl.constexpr,
    READY: tl.constexpr,
) -> None:
    """Round, add the bias before and the residual after rounding, store, and leave what the next norm needs."""
    outs = tile * BLOCK_O + tl.arange(0, BLOCK_O)
    used = (outs < NUM_OUT)[:, None] & (rows < num_rows)[None, :]
    at = rows[None, :] * NUM_OUT + outs[:, None]
    if bias is not None:
        sums += tl.load(bias + outs, outs < NUM_OUT, 0.0).to(tl.float32)[:, None]
    rounded = sums.to(out.dtype.element_ty)
    if RESIDUAL:
        rounded = (before.to(tl.float32) + rounded.to(tl.float32)).to(out.dtype.element_ty)
        if READY:
            wide = tl.where(used, rounded.to(tl.float32), 0.0)
            at_tile = ready_squares + rows * ((NUM_OUT + BLOCK_O - 1) // BLOCK_O) + tile
            tl.store(at_tile, tl.sum(wide * wide, axis=0), mask=rows < num_rows)
            tl.store(ready_scaled + at, (wide * weight.to(tl.float32)[:, None]).to(out.dtype.element_ty), mask=used)
    tl.store(out + at, rounded, mask=used)


@triton.jit
def store_gated(
    gates: "Any",
    ups: "Any",
    out: "Any",
    rows: "Any",
    num_rows: "Any",
    first_out: "Any",
    NUM_OUT: tl.constexpr,
    BLOCK_O: tl.constexpr,
) -> None:
    """silu(gate) * up, rounded where the plain operations round."""
    outs = first_out + tl.arange(0, BLOCK_O)
    used = (outs < NUM_OUT)[:, None] & (rows < num_rows)[None, :]
    gates = gates.to(out.dtype.element_ty).to(tl.float32)
    active = (gates / (1.0 + tl.exp(-gates))).to(out.dtype.element_ty).to(tl.float32)
    result = active * ups.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + rows[None, :] * NUM_OUT + outs[:, None], result.to(out.dtype.element_ty), mask=used)
