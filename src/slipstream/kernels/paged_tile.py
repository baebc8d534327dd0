"""Parts of paged attention: one block of keys, and the blocks where each tree row has keys of its own.

Tiles are [keys, columns] and [width, columns]: keys and values are the left operand of the matrix instruction.

Shape letters: B keys of a block, M columns (a row and a head), K head width.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

from typing import Any

import triton
import triton.language as tl


@triton.jit
def place_of(pages: "Any", at: "Any", read: "Any", PAGE: tl.constexpr) -> Any:
    """Slots (int64) of the addresses `at` of one sequence."""
    return tl.load(pages + at // PAGE, mask=read, other=0).to(tl.int64) * PAGE + at % PAGE


@triton.jit
def attend_block(
    q_tile: "Any",
    keys: "Any",
    values: "Any",
    slots: "Any",
    read: "Any",
    seen: "Any",
    scale: "Any",
    top: "Any",
    weight: "Any",
    sums: "Any",
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> Any:
    """Add one block: the running maximum [M] (of scores in powers of two), weight [M] and sums [K, M].

    A column that sees nothing of the block keeps its bits.
    """
    widths = tl.arange(0, BLOCK_K)
    used = read[:, None] & (widths < WIDTH)[None, :]
    k_tile = tl.load(keys + slots[:, None] + widths[None, :], mask=used, other=0.0)
    products = tl.dot(k_tile, q_tile, input_precision="ieee")
    v_tile = tl.load(values + slots[:, None] + widths[None, :], mask=used, other=0.0)
    scores = tl.where(seen, products * scale, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=0))
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    shares = tl.exp2(scores - base[None, :])
    keep = tl.exp2(top - base)
    weight = weight * keep + tl.sum(shares, axis=0)
    sums = tl.dot(tl.trans(v_tile), shares.to(v_tile.dtype), sums * keep[None, :], input_precision="ieee")
    return new_top, weight, sums


@triton.jit
def tail_blocks(
    q_tile: "Any",
    keys: "Any",
    values: "Any",
    pages: "Any",
    paths: "Any",
    newest_M: "Any",
    row: "Any",
    prefix: "Any",
    start: "Any",
    stop: "Any",
    scale: "Any",
    first: "Any",
    window: "Any",
    num_rows: "Any",
    num_path: "Any",
    top: "Any",
    weight: "Any",
    sums: "Any",
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
) -> Any:
    """Blocks that hold drafted positions, once for each row of the tile: position prefix + d is its path's entry d."""
    first_row = tl.program_id(2) * BLOCK_M // GROUP
    end_row = tl.minimum(((tl.program_id(2) + 1) * BLOCK_M - 1) // GROUP + 1, num_rows)
    for block in range(start, stop, BLOCK_L):
        at = block + tl.arange(0, BLOCK_L)
        for each in tl.range(first_row, end_row, num_stages=STAGES):
            step = at - prefix
            drafted = (step >= 0) & (step < num_path)
            own = tl.load(paths + each * num_path + step, mask=drafted, other=0).to(tl.int32)
            address = tl.where(step >= 0, own, at)
            newest = tl.max(tl.where(row == each, newest_M, -1), axis=0)
            read = (at <= newest) & (at >= first) & (address >= 0)
            slots = place_of(pages, address, read, PAGE) * (NUM_KV_HEADS * WIDTH)
            seen = read[:, None] & (row == each)[None, :] & (at[:, None] > newest_M[None, :] - window)
            top, weight, sums = attend_block(
                q_tile, keys, values, slots, read, seen, scale, top, weight, sums, WIDTH, BLOCK_K
            )
    return top, weight, sums


@triton.jit
def attend_part(
    q_tile: "Any",
    keys: "Any",
    values: "Any",
    pages: "Any",
    paths: "Any",
    committed: "Any",
    sequence: "Any",
    newest_M: "Any",
    row: "Any",
    start: "Any",
    stop: "Any",
    scale: "Any",
    first: "Any",
    window: "Any",
    num_rows: "Any",
    num_path: "Any",
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    TREE: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
) -> Any:
    """Positions [start, stop): the blocks that all rows share, then those where each row has its own path."""
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_K, BLOCK_M), tl.float32)
    oldest = tl.min(tl.where(newest_M >= 0, newest_M, 1 << 30), axis=0) - window + 1  # that some row sees
    first = tl.maximum(first, oldest)
    start = tl.minimum(tl.maximum(start, first // BLOCK_L * BLOCK_L), stop)
    shared = stop
    if TREE:
        prefix = tl.load(committed + sequence).to(tl.int32)
        shared = tl.minimum(stop, prefix // BLOCK_L * BLOCK_L)
    for block in tl.range(start, shared, BLOCK_L, num_stages=STAGES):
        at = block + tl.arange(0, BLOCK_L)
        read = (at < stop) & (at >= first)
        slots = place_of(pages, at, read, PAGE) * (NUM_KV_HEADS * WIDTH)
        seen = (at[:, None] <= newest_M[None, :]) & read[:, None] & (at[:, None] > newest_M[None, :] - window)
        top, weight, sums = attend_block(
            q_tile, keys, values, slots, read, seen, scale, top, weight, sums, WIDTH, BLOCK_K
        )
    if TREE:
        top, weight, sums = tail_blocks(
            q_tile, keys, values, pages, paths + sequence * num_rows * num_path, newest_M, row, prefix,
            tl.maximum(start, shared), stop, scale, first, window, num_rows, num_path, top, weight, sums,
            GROUP, NUM_KV_HEADS, WIDTH, PAGE, BLOCK_L, BLOCK_M, BLOCK_K, STAGES,
        )  # fmt: skip
    return top, weight, sums
