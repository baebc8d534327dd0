"""Attention of few rows of each sequence over its pages: decode, chain verify and tree verify.

All query rows of a sequence that share a kv head are the columns of one tile, so keys and values are read once. The
keys are cut at fixed absolute positions (part i holds [i * part, (i + 1) * part)) and visited in blocks at fixed
positions, so a row's bits depend on its own keys alone. A tree row's path stands where a chain's keys would: in blocks
that hold drafted positions every row gets the keys of its own path, and the other rows see none of them.

Sums of a part are [K, M] beside the maximum and the weight of each column; `combine_kernel` adds the parts.

Shape letters: S sequences, R rows of each, H heads, G kv heads, g = H / G, M = R * g columns, K head width, L slots of
a layer, E entries of a page table, N parts, B keys of a block, D path length.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.keys import Keys
from slipstream.kernels.launch import assert_rows, launch, power_of_two
from slipstream.kernels.order import after_previous
from slipstream.kernels.paged_tile import attend_part

PART = 256  # keys of a part: fixed, because it decides in which order a row's sums are added
BLOCK = 64  # keys of a block: likewise


@triton.jit(do_not_specialize=["num_rows", "num_pages", "num_path", "num_parts", "first", "window"])
def paged_kernel(
    queries: "Any",
    keys: "Any",
    values: "Any",
    pages: "Any",
    newest: "Any",
    committed: "Any",
    paths: "Any",
    sums_out: "Any",
    tops_out: "Any",
    out: "Any",
    scale: "Any",
    first: "Any",
    window: "Any",
    num_rows: "Any",
    num_pages: "Any",
    num_path: "Any",
    num_parts: "Any",
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    TREE: tl.constexpr,
    ONE_PART: tl.constexpr,
    PART_KEYS: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One part of one sequence's keys for the columns of one kv head."""
    after_previous(PDL)
    sequence, part = (tl.program_id(0) // NUM_KV_HEADS).to(tl.int64), tl.program_id(1)
    head = tl.program_id(0) % NUM_KV_HEADS
    columns, widths = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    real = columns < num_rows * GROUP
    row = columns // GROUP
    newest_M = tl.load(newest + sequence * num_rows + row, mask=real, other=-1).to(tl.int32)
    last, start = tl.max(newest_M, axis=0), part * PART_KEYS
    q_at = (sequence * num_rows + row) * (NUM_KV_HEADS * GROUP) + head * GROUP + columns % GROUP
    q_used = real[:, None] & (widths < WIDTH)[None, :]
    if start <= last:
        q_tile = tl.trans(tl.load(queries + q_at[:, None] * WIDTH + widths[None, :], mask=q_used, other=0.0))
        stop, at_head = tl.minimum(start + PART_KEYS, last + 1), head * WIDTH
        top, weight, sums = attend_part(
            q_tile, keys + at_head, values + at_head, pages + sequence * num_pages, paths, committed, sequence,
            newest_M, row, start, stop, scale, first, window, num_rows, num_path,
            GROUP, NUM_KV_HEADS, WIDTH, PAGE, TREE, BLOCK_L, BLOCK_M, BLOCK_K, STAGES,
        )  # fmt: skip
        if ONE_PART:
            result = (sums / tl.where(weight > 0, weight, 1.0)[None, :]).to(out.dtype.element_ty)
            tl.store(out + q_at[None, :] * WIDTH + widths[:, None], result, mask=tl.trans(q_used))
        else:
            place = q_at * num_parts + part
            tl.store(tops_out + place * 2, top, mask=real)
            tl.store(tops_out + place * 2 + 1, weight, mask=real)
            tl.store(sums_out + place[None, :] * WIDTH + widths[:, None], sums, mask=tl.trans(q_used))
    elif ONE_PART:  # no keys at all
        tl.store(out + q_at[:, None] * WIDTH + widths[None, :], tl.zeros((BLOCK_M, BLOCK_K), tl.float32), mask=q_used)


@triton.jit(do_not_specialize=["num_parts"])
def combine_kernel(
    sums_in: "Any",
    tops_in: "Any",
    newest: "Any",
    out: "Any",
    num_parts: "Any",
    NUM_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PART_KEYS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One head of one row: its parts in order, CHUNK at a time."""
    after_previous(PDL)
    place = tl.program_id(0).to(tl.int64)
    used_parts = (tl.load(newest + place // NUM_HEADS).to(tl.int32) + PART_KEYS) // PART_KEYS
    parts = tl.arange(0, BLOCK_N)
    tops = tl.load(tops_in + (place * num_parts + parts) * 2, mask=parts < used_parts, other=float("-inf"))
    highest = tl.max(tops, axis=0)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    widths = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_K,), tl.float32)
    weight = tl.zeros((CHUNK,), tl.float32)
    for chunk in range(0, used_parts, CHUNK):
        each = chunk + tl.arange(0, CHUNK)
        known = each < used_parts
        at = place * num_parts + each
        factor = tl.exp2(tl.load(tops_in + at * 2, mask=known, other=float("-inf")) - highest)
        weight += factor * tl.load(tops_in + at * 2 + 1, mask=known, other=0.0)
        tile = tl.load(
            sums_in + at[:, None] * WIDTH + widths[None, :], mask=known[:, None] & (widths < WIDTH)[None, :], other=0.0
        )
        total += tl.sum(tile * factor[:, None], axis=0)
    whole = tl.sum(weight, axis=0)
    result = total / tl.where(whole > 0, whole, 1.0)
    tl.store(out + place * WIDTH + widths, result.to(out.dtype.element_ty), mask=widths < WIDTH)


def paged_attention(
    q_THK: Tensor, keys_LGK: Tensor, values_LGK: Tensor, keys: Keys, *, stages: int = 3, warps: int = 4,
    pdl: bool = False,
) -> Tensor:  # fmt: skip
    """Attention [T, H, K] of T = S * R rows over a layer's keys and values [L, G, K]; no keys give zeros."""
    (num_sequences, num_rows), (_, num_heads, width) = keys.newest.shape, q_THK.shape
    num_kv_heads = keys_LGK.shape[1]
    assert_rows(q_THK, keys_LGK, values_LGK, keys.pages, keys.newest, keys.committed, keys.paths)
    group, parts = num_heads // num_kv_heads, max(-(-keys.most // PART), 1)
    block_m = min(power_of_two(num_rows * group, least=16), 64)
    out = torch.empty_like(q_THK)
    space = (q_THK.shape[0] * num_heads, parts) if parts > 1 else (0, 1)
    sums = torch.empty(*space, width, device=q_THK.device, dtype=torch.float32)
    tops = torch.empty(*space, 2, device=q_THK.device, dtype=torch.float32)
    launch(
        paged_kernel, (num_sequences * num_kv_heads, parts, -(-num_rows * group // block_m)),
        q_THK, keys_LGK, values_LGK, keys.pages, keys.newest, keys.committed, keys.paths, sums, tops, out,
        width**-0.5 * 1.4426950408889634, keys.first, keys.window or (1 << 30),
        num_rows, keys.pages.shape[1], 0 if keys.paths is None else keys.paths.shape[2], parts,
        GROUP=group, NUM_KV_HEADS=num_kv_heads, WIDTH=width,
        PAGE=keys.page, TREE=keys.paths is not None, ONE_PART=parts == 1, PART_KEYS=PART,
        BLOCK_L=BLOCK, BLOCK_M=block_m, BLOCK_K=power_of_two(width), STAGES=stages, PDL=pdl,
        num_warps=warps, launch_pdl=pdl,
    )  # fmt: skip
    if parts > 1:
        launch(
            combine_kernel, (q_THK.shape[0] * num_heads,), sums, tops, keys.newest, out, parts,
            NUM_HEADS=num_heads, WIDTH=width, PART_KEYS=PART, BLOCK_N=power_of_two(parts), CHUNK=8,
            BLOCK_K=power_of_two(width), PDL=pdl, num_warps=2, launch_pdl=pdl,
        )  # fmt: skip
    return out
