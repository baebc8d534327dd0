"""What stands around the blocks of paged attention: RoPE and the store of new entries before, adding parts after.

Shape letters: R rows of a sequence, M columns (a row and a head), K head width, F = K / 2.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false
# pyright: reportAssignmentType=false

from typing import Any

import triton
import triton.language as tl

from slipstream.kernels.paged_tile import place_of

ROWS = tl.constexpr(16)  # new entries that are stored at a time
MANY = tl.constexpr(64)  # parts that are added at a time
LINE = tl.constexpr(64)  # elements of two bytes in a line of the cache


@triton.jit
def ask_ahead(
    keys: "Any",
    values: "Any",
    pages: "Any",
    start: "Any",
    last: "Any",
    NUM_KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    PART_KEYS: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """Have a part's entries of one head come to the L2 while the kernel in front still runs."""
    at = start + tl.arange(0, PART_KEYS)
    slots = place_of(pages, at, at <= last, PAGE) * (NUM_KV_HEADS * WIDTH)
    lines: tl.constexpr = BLOCK_K // LINE if BLOCK_K > LINE else 1
    offsets = slots[:, None] + (tl.arange(0, lines) * LINE)[None, :]
    asked: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(asked, "=r,l", [keys + offsets], tl.int32, is_pure=False, pack=1)
    tl.inline_asm_elementwise(asked, "=r,l", [values + offsets], tl.int32, is_pure=False, pack=1)


@triton.jit
def angles(
    position: "Any",
    real: "Any",
    cos: "Any",
    sin: "Any",
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> Any:
    """Cosines and sines [M, K] of positions, each angle twice; the first half's sines are negative."""
    widths, half = tl.arange(0, BLOCK_K), WIDTH // 2
    used = real[:, None] & (widths < WIDTH)[None, :]
    at = position.to(tl.int64)[:, None] * half + (widths % half)[None, :]
    cosine, sine = tl.load(cos + at, mask=used, other=0.0), tl.load(sin + at, mask=used, other=0.0)
    return cosine, tl.where((widths < half)[None, :], -sine, sine)


@triton.jit
def turned(
    x: "Any",
    place: "Any",
    real: "Any",
    cosine: "Any",
    sine: "Any",
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> Any:
    """Heads [M, K] of a merged projection, turned; place: which head each row is."""
    widths, half = tl.arange(0, BLOCK_K), WIDTH // 2
    used = real[:, None] & (widths < WIDTH)[None, :]
    start = x + place[:, None] * WIDTH
    own = tl.load(start + widths[None, :], mask=used, other=0.0).to(tl.float32)
    partner = tl.where(widths < half, widths + half, widths - half)
    other = tl.load(start + partner[None, :], mask=used, other=0.0).to(tl.float32)
    return (own * cosine + other * sine).to(x.dtype.element_ty)


@triton.jit
def new_places(
    newest: "Any",
    writes: "Any",
    pages: "Any",
    sequence: "Any",
    block: "Any",
    stop: "Any",
    num_rows: "Any",
    num_pages: "Any",
    PAGE: tl.constexpr,
) -> Any:
    """Of ROWS new rows: their newest positions, their slots, and which of them this part stores, all or none.

    Each program that reads new entries stores all of them itself, the same bits as the others do.
    """
    row = block + tl.arange(0, ROWS)
    at = sequence * num_rows + row
    newest_R = tl.load(newest + at, mask=row < num_rows, other=-1, cache_modifier=".cg").to(tl.int32)
    address = newest_R
    if writes is not None:
        address = tl.load(writes + at, mask=row < num_rows, other=-1, cache_modifier=".cg").to(tl.int32)
    real = (address >= 0) & (newest_R >= 0)
    lowest = tl.min(tl.where(real, newest_R, 1 << 30), axis=0)
    real = real & (lowest + tl.zeros((ROWS,), tl.int32) < stop)
    return newest_R, place_of(pages + sequence * num_pages, address, real, PAGE), real


@triton.jit
def store_new(
    x: "Any",
    keys: "Any",
    values: "Any",
    slot: "Any",
    real: "Any",
    cosine: "Any",
    sine: "Any",
    sequence: "Any",
    head: "Any",
    block: "Any",
    num_rows: "Any",
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """Store the entries of ROWS new rows of one head."""
    widths = tl.arange(0, BLOCK_K)
    heads: tl.constexpr = NUM_KV_HEADS * (GROUP + 2)
    to = (slot * NUM_KV_HEADS + head)[:, None] * WIDTH + widths[None, :]
    used = real[:, None] & (widths < WIDTH)[None, :]
    place = (sequence * num_rows + block + tl.arange(0, ROWS)) * heads + NUM_KV_HEADS * GROUP + head
    tl.store(keys + to, turned(x, place, real, cosine, sine, WIDTH, BLOCK_K), mask=used)
    value_at = x + (place + NUM_KV_HEADS)[:, None] * WIDTH + widths[None, :]
    tl.store(values + to, tl.load(value_at, mask=used, other=0.0), mask=used)


@triton.jit
def finish(
    top: "Any",
    weight: "Any",
    part_sums: "Any",
    q_at: "Any",
    newest_M: "Any",
    last: "Any",
    part: "Any",
    real: "Any",
    sums: "Any",
    tops: "Any",
    out: "Any",
    arrivals: "Any",
    num_parts: "Any",
    HERE: tl.constexpr,
    PART_KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """Store what a part gave: the result where it is the only one; else itself, and with HERE the last to end adds."""
    widths = tl.arange(0, BLOCK_K)
    kept = real[None, :] & (widths < WIDTH)[:, None]
    to = out + q_at[None, :] * WIDTH + widths[:, None]
    if (num_parts == 1) | (HERE & (last < PART_KEYS)):
        result = part_sums / tl.where(weight > 0, weight, 1.0)[None, :]
        tl.store(to, result.to(out.dtype.element_ty), mask=kept)
    else:
        at, tops_at = sums + (q_at * num_parts)[None, :] * WIDTH + widths[:, None], tops + q_at * num_parts * 2
        tl.store(tops_at + part * 2, top, mask=real)
        tl.store(tops_at + part * 2 + 1, weight, mask=real)
        tl.store(at + part * WIDTH, part_sums, mask=kept)
        if HERE:
            tl.debug_barrier()  # all threads' sums are stored before the count says so
            mine = arrivals + tl.program_id(0) * tl.num_programs(2) + tl.program_id(2)
            if tl.atomic_add(mine, 1, sem="acq_rel") == last // PART_KEYS:
                tl.store(mine, 0)
                used_M = (newest_M + PART_KEYS) // PART_KEYS
                whole = combined(at, tops_at, used_M, real, kept, WIDTH, BLOCK_M, BLOCK_K)
                tl.store(to, whole.to(out.dtype.element_ty), mask=kept)


@triton.jit
def combined(
    sums: "Any",
    tops: "Any",
    used_M: "Any",
    real: "Any",
    kept: "Any",
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> Any:
    """All parts of some columns [K, M], eight by eight, each eight as a tree: one order, whoever adds.

    sums: addresses [K, M] of part 0; tops: [M] of its maximum and weight; used_M: how many parts each column has.
    """
    most = tl.max(tl.where(real, used_M, 0), axis=0)
    highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    for part in range(most):
        top = tl.load(tops + part * 2, mask=real & (part < used_M), other=float("-inf"), cache_modifier=".cg")
        highest = tl.maximum(highest, top)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.zeros((BLOCK_K, BLOCK_M), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    for chunk in range(0, most, 8):
        sum_0, weight_0 = pair(sums, tops, chunk, highest, used_M, real, kept, WIDTH)
        sum_1, weight_1 = pair(sums, tops, chunk + 2, highest, used_M, real, kept, WIDTH)
        left, left_weight = sum_0 + sum_1, weight_0 + weight_1
        sum_2, weight_2 = pair(sums, tops, chunk + 4, highest, used_M, real, kept, WIDTH)
        sum_3, weight_3 = pair(sums, tops, chunk + 6, highest, used_M, real, kept, WIDTH)
        total += left + (sum_2 + sum_3)
        weight += left_weight + (weight_2 + weight_3)
    return total / tl.where(weight > 0, weight, 1.0)[None, :]


@triton.jit
def pair(
    sums: "Any",
    tops: "Any",
    part: "Any",
    highest: "Any",
    used_M: "Any",
    real: "Any",
    kept: "Any",
    WIDTH: tl.constexpr,
) -> Any:
    """Two parts that follow each other, as seen from the highest maximum."""
    known, next_known = real & (part < used_M), real & (part + 1 < used_M)
    top = tl.load(tops + part * 2, mask=known, other=float("-inf"), cache_modifier=".cg")
    next_top = tl.load(tops + part * 2 + 2, mask=next_known, other=float("-inf"), cache_modifier=".cg")
    weight = tl.load(tops + part * 2 + 1, mask=known, other=0.0, cache_modifier=".cg")
    next_weight = tl.load(tops + part * 2 + 3, mask=next_known, other=0.0, cache_modifier=".cg")
    factor, next_factor = tl.exp2(top - highest), tl.exp2(next_top - highest)
    tile = tl.load(sums + part * WIDTH, mask=kept & known[None, :], other=0.0, cache_modifier=".cg")
    next_tile = tl.load(sums + part * WIDTH + WIDTH, mask=kept & next_known[None, :], other=0.0, cache_modifier=".cg")
    return (
        tile * factor[None, :] + next_tile * next_factor[None, :],
        weight * factor + next_weight * next_factor,
    )


@triton.jit
def combined_many(sums: "Any", tops: "Any", used: "Any", WIDTH: tl.constexpr, BLOCK_K: tl.constexpr) -> Any:
    """All parts of one column [K], MANY at a time, each lot seen from the highest maximum so far."""
    many, widths = tl.arange(0, MANY), tl.arange(0, BLOCK_K)
    highest, weight = float("-inf"), 0.0
    total = tl.zeros((BLOCK_K,), tl.float32)
    for first in range(0, used, MANY):
        part = first + many
        known = part < used
        top = tl.load(tops + part * 2, mask=known, other=float("-inf"), cache_modifier=".cg")
        own = tl.load(tops + part * 2 + 1, mask=known, other=0.0, cache_modifier=".cg")
        at, kept = sums + part[:, None] * WIDTH + widths[None, :], known[:, None] & (widths < WIDTH)[None, :]
        tile = tl.load(at, mask=kept, other=0.0, cache_modifier=".cg")
        new_highest = tl.maximum(highest, tl.max(top, axis=0))
        base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        factor, keep = tl.exp2(top - base), tl.exp2(highest - base)
        total = total * keep + tl.sum(tile * factor[:, None], axis=0)
        weight = weight * keep + tl.sum(own * factor, axis=0)
        highest = new_highest
    return total / tl.where(weight > 0, weight, 1.0)
