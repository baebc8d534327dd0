"""Attention of few rows of each sequence over its pages: decode, chain verify and tree verify.

Query rows of a sequence that share a kv head are the columns of a tile, which reads keys and values once. The keys are
cut at fixed absolute positions (part i holds [i * part, (i + 1) * part)) and visited in blocks at fixed positions, so a
row's bits depend on its own keys alone. A tree row's path stands where a chain's keys would: in blocks that hold
drafted positions every row gets the keys of its own path, and the other rows see none of them.

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
from slipstream.kernels.launch import assert_rows, launch, power_of_two, shared_bytes
from slipstream.kernels.order import after_previous
from slipstream.kernels.paged_new import angles, ask_ahead, new_entries, store_all, turned
from slipstream.kernels.paged_parts import combined, combined_many, finish, finish_empty, part_of
from slipstream.kernels.paged_tile import attend_part

PART = 256  # keys of a part: fixed, because it decides in which order a row's sums are added
FEW_PARTS = 8  # that one program adds for all its columns; more are added by a program for each head and row
BLOCK_BYTES = 1 << 15  # of keys, that a block holds, but no more of them than a part: likewise
MOST_COLUMNS, FEW_COLUMNS = 32, 16  # of a tile; of a tree's with few parts; no bit of bf16 depends on it
FEW_STAGES, MANY_STAGES = 2, 1  # of loads: with many parts, programs of one multiprocessor hide each other's waits,
# and a part in one block has nothing to load ahead
LEAST_WIDTH = 16  # of a matrix instruction


@triton.jit(do_not_specialize=["num_rows", "num_pages", "num_path", "num_parts", "first", "window", "last_position"])
def paged_kernel(
    queries: "Any", keys: "Any", values: "Any", pages: "Any", newest: "Any", committed: "Any", paths: "Any",
    sums_out: "Any", tops_out: "Any", out: "Any", writes: "Any", cos: "Any", sin: "Any", arrivals: "Any",
    scale: "Any", first: "Any", window: "Any", num_rows: "Any", num_pages: "Any", num_path: "Any", num_parts: "Any",
    last_position: "Any", GROUP: tl.constexpr, NUM_KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    TREE: tl.constexpr, TURN: tl.constexpr, HERE: tl.constexpr, PART_KEYS: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, FEW: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """One part of one sequence's keys for the columns of one kv head.

    TURN: queries are a merged projection; they and the new keys are turned here, and new entries stored. HERE: the
    last program of the columns adds all parts.
    """
    sequence, head = (tl.program_id(0) // NUM_KV_HEADS).to(tl.int64), tl.program_id(0) % NUM_KV_HEADS
    columns, widths = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    real, row = columns < num_rows * GROUP, columns // GROUP
    at_row = sequence * num_rows + row
    newest_M = tl.load(newest + at_row, mask=real, other=-1, cache_modifier=".cg").to(tl.int32)
    last = tl.max(newest_M, axis=0)
    part, start, stop = part_of(tl.program_id(1), last, PART_KEYS)
    q_at = at_row * (NUM_KV_HEADS * GROUP) + head * GROUP + columns % GROUP
    q_used = real[:, None] & (widths < WIDTH)[None, :]
    if PDL and num_parts <= FEW:  # more would be read too early
        ask_ahead(
            keys + head * WIDTH, values + head * WIDTH, pages + sequence * num_pages, start, last, NUM_KV_HEADS, WIDTH,
            PAGE, PART_KEYS, BLOCK_K,
        )  # fmt: skip
    if TURN:
        position_M = tl.minimum(tl.maximum(newest_M - first, 0), last_position)
        cosine, sine = angles(position_M, real, cos, sin, WIDTH, BLOCK_K)
        slot_R, stored_R, new_cosine, new_sine = new_entries(
            newest, writes, pages, cos, sin, sequence, 0, stop, first, last_position, num_rows, num_pages,
            WIDTH, PAGE, BLOCK_K,
        )  # fmt: skip
    after_previous(PDL)
    if start <= last:
        if TURN:
            place = at_row * (NUM_KV_HEADS * (GROUP + 2)) + head * GROUP + columns % GROUP
            q_rows = turned(queries, place, real, cosine, sine, WIDTH, BLOCK_K)
            store_all(
                queries, keys, values, newest, writes, pages, cos, sin, slot_R, stored_R, new_cosine, new_sine,
                sequence, head, stop, first, last_position, num_rows, num_pages,
                GROUP, NUM_KV_HEADS, WIDTH, PAGE, BLOCK_K,
            )  # fmt: skip
        else:
            q_rows = tl.load(queries + q_at[:, None] * WIDTH + widths[None, :], mask=q_used, other=0.0)
        top, weight, sums = attend_part(
            tl.trans(q_rows), keys + head * WIDTH, values + head * WIDTH, pages + sequence * num_pages, paths,
            committed, sequence, newest_M, row, start, tl.minimum(stop, last + 1), scale, first, window,
            num_rows, num_path, GROUP, NUM_KV_HEADS, WIDTH, PAGE, TREE, BLOCK_L, BLOCK_M, BLOCK_K, STAGES,
        )  # fmt: skip
        finish(
            top, weight, sums, q_at, newest_M, last, part, real, sums_out, tops_out, out, arrivals, num_parts,
            HERE, PART_KEYS, WIDTH, BLOCK_M, BLOCK_K,
        )  # fmt: skip
    elif part == 0:  # no keys at all
        finish_empty(
            q_at, newest_M, part, real, sums_out, tops_out, out, arrivals, num_parts, HERE, PART_KEYS, WIDTH, BLOCK_M,
            BLOCK_K,
        )  # fmt: skip


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
    FEW: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One head of one row: few parts in the order in which a program adds them for all its columns."""
    place, widths = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_K)
    last = tl.load(newest + place // NUM_HEADS, cache_modifier=".cg").to(tl.int32)
    used = (last + PART_KEYS) // PART_KEYS
    after_previous(PDL)
    first, to = place * num_parts, out + place * WIDTH + widths
    if used > FEW:
        row = combined_many(sums_in + first * WIDTH, tops_in + first * 2, used, WIDTH, BLOCK_K)
        tl.store(to, row.to(out.dtype.element_ty), mask=widths < WIDTH)
    else:
        one, kept = tl.arange(0, 1), (widths < WIDTH)[:, None]
        at = sums_in + (first + one)[None, :] * WIDTH + widths[:, None]
        whole = combined(at, tops_in + (first + one) * 2, used + one, one == 0, kept, WIDTH, 1, BLOCK_K)
        tl.store(to[:, None] + one[None, :], whole.to(out.dtype.element_ty), mask=kept)


def paged_attention(
    q_THK: Tensor,
    keys_LGK: Tensor,
    values_LGK: Tensor,
    keys: Keys,
    *,
    tables_PF: tuple[Tensor, Tensor] | None = None,
    arrivals: Tensor | None = None,
    warps: int = 4,
    pdl: bool = False,
) -> Tensor:
    """Attention [T, H, K] of T = S * R rows over a layer's keys and values [L, G, K]; no keys give zeros.

    tables_PF: fp32 cosines and sines; q is the merged projection [T, (H + 2 G) K] then: queries and keys are turned
    and entries stored on the way (see `rotate_and_store` for the rows' places). arrivals: int32 zeros, one for each
    sequence, kv head and tile of columns: few parts are added by the program that ends last, not by another kernel.
    """
    (num_sequences, num_rows), (num_kv_heads, width) = keys.newest.shape, keys_LGK.shape[1:]
    num_heads = q_THK.shape[1] // width - 2 * num_kv_heads if tables_PF else q_THK.shape[1]
    assert_rows(q_THK, keys_LGK, values_LGK, keys.pages, keys.newest, keys.committed, keys.paths, keys.writes)
    group, parts = num_heads // num_kv_heads, num_parts(keys)
    block_m = min(power_of_two(num_rows * group, least=16), most_columns(parts, tree=keys.paths is not None))
    tiles, block_k = -(-num_rows * group // block_m), power_of_two(width, least=LEAST_WIDTH)
    grid = (num_sequences * num_kv_heads, parts, tiles)
    out = q_THK.new_empty(q_THK.shape[0], num_heads, width)
    here = arrivals is not None and parts <= FEW_PARTS
    assert arrivals is None or grid[0] * grid[2] <= arrivals.numel(), "there is a count for each tile of columns"
    space = (out.shape[0] * num_heads, parts) if parts > 1 else (0, 1)
    sums = torch.empty(*space, width, device=q_THK.device, dtype=torch.float32)
    tops = torch.empty(*space, 2, device=q_THK.device, dtype=torch.float32)
    cos, sin = tables_PF or (None, None)
    launch(
        paged_kernel, grid,
        q_THK, keys_LGK, values_LGK, keys.pages, keys.newest, keys.committed, keys.paths, sums, tops, out,
        keys.writes, cos, sin, arrivals, width**-0.5 * 1.4426950408889634, keys.first, keys.window or (1 << 30),
        num_rows, keys.pages.shape[1], 0 if keys.paths is None else keys.paths.shape[2], parts,
        0 if cos is None else cos.shape[0] - 1,
        GROUP=group, NUM_KV_HEADS=num_kv_heads, WIDTH=width,
        PAGE=keys.page, TREE=keys.paths is not None, TURN=cos is not None, HERE=here, PART_KEYS=PART,
        BLOCK_L=block_of(block_k, keys_LGK.element_size()), BLOCK_M=block_m, BLOCK_K=block_k,
        STAGES=stages(parts, block_k, keys_LGK), FEW=FEW_PARTS, PDL=pdl, num_warps=warps, launch_pdl=pdl,
    )  # fmt: skip
    if parts > 1 and not here:
        launch(
            combine_kernel, (out.shape[0] * num_heads,), sums, tops, keys.newest, out, parts,
            NUM_HEADS=num_heads, WIDTH=width, PART_KEYS=PART, FEW=FEW_PARTS, BLOCK_K=block_k, PDL=pdl,
            num_warps=4, launch_pdl=pdl,
        )  # fmt: skip
    return out


def num_parts(keys: Keys) -> int:
    """How many parts the longest of its sequences may have."""
    return max(-(-keys.most // PART), 1)


def has_many_parts(keys: Keys) -> bool:
    """Whether another kernel may have to add them."""
    return num_parts(keys) > FEW_PARTS


def most_columns(parts: int, *, tree: bool) -> int:
    """Columns of a tile at most: a tree's rows are visited one by one in its last blocks, other tiles' at once; but
    each tile reads all keys, of which many parts have many.
    """
    return FEW_COLUMNS if tree and parts <= FEW_PARTS else MOST_COLUMNS


def block_of(width: int, item_bytes: int) -> int:
    """Keys of a block of heads of this width."""
    return min(BLOCK_BYTES // (width * item_bytes), PART)


def stages(parts: int, width: int, keys_LGK: Tensor) -> int:
    """How many blocks are loaded ahead, as far as they fit into shared memory; no bit depends on it."""
    beside = (16 << 10) + 128 * width  # what else a program keeps there, at most
    item_bytes = keys_LGK.element_size()
    block = block_of(width, item_bytes)
    num_bytes = FEW_STAGES * 2 * block * width * item_bytes + beside
    several = parts <= FEW_PARTS and block < PART  # blocks of a part
    return FEW_STAGES if several and num_bytes <= shared_bytes(keys_LGK.device) else MANY_STAGES
