"""What comes after the blocks of paged attention: the parts are stored and added.

Shape letters: M columns (a row and a head), K head width.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

from typing import Any

import triton
import triton.language as tl

MANY = tl.constexpr(128)  # parts that are added at a time, of wider heads fewer
TOGETHER = tl.constexpr(1 << 14)  # elements of them


@triton.jit
def part_of(turn: "Any", last: "Any", PART_KEYS: tl.constexpr) -> Any:
    """The part that a program takes and its positions [start, stop): the last first, which has new entries to store."""
    used = (last + PART_KEYS) // PART_KEYS
    part = tl.where(turn < used, used - 1 - turn, turn)
    return part, part * PART_KEYS, (part + 1) * PART_KEYS


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
def finish_empty(
    q_at: "Any",
    newest_M: "Any",
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
    """Store what no keys at all give."""
    top, weight = tl.full((BLOCK_M,), float("-inf"), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    finish(
        top, weight, tl.zeros((BLOCK_K, BLOCK_M), tl.float32), q_at, newest_M, 0, part, real, sums, tops, out, arrivals,
        num_parts, HERE, PART_KEYS, WIDTH, BLOCK_M, BLOCK_K,
    )  # fmt: skip


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
    """All parts of one column [K], so many at a time, each lot seen from the highest maximum so far."""
    lot: tl.constexpr = min(MANY, TOGETHER // BLOCK_K)
    many, widths = tl.arange(0, lot), tl.arange(0, BLOCK_K)
    highest, weight = float("-inf"), 0.0
    total = tl.zeros((BLOCK_K,), tl.float32)
    for first in range(0, used, lot):
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
