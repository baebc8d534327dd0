"""What comes before the blocks of paged attention: RoPE, the store of new entries, a word to the cache.

Shape letters: R rows of a sequence, M columns (a row and a head), K head width.
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
def new_entries(
    newest: "Any",
    writes: "Any",
    pages: "Any",
    cos: "Any",
    sin: "Any",
    sequence: "Any",
    block: "Any",
    stop: "Any",
    first: "Any",
    last_position: "Any",
    num_rows: "Any",
    num_pages: "Any",
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> Any:
    """Of ROWS new rows: their slots, which of them this part stores, all or none, and their angles.

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
    slot = place_of(pages + sequence * num_pages, address, real, PAGE)
    position = tl.minimum(tl.maximum(newest_R - first, 0), last_position)
    cosine, sine = angles(position, real, cos, sin, WIDTH, BLOCK_K)
    return slot, real, cosine, sine


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
def store_all(
    x: "Any",
    keys: "Any",
    values: "Any",
    newest: "Any",
    writes: "Any",
    pages: "Any",
    cos: "Any",
    sin: "Any",
    slot: "Any",
    real: "Any",
    cosine: "Any",
    sine: "Any",
    sequence: "Any",
    head: "Any",
    stop: "Any",
    first: "Any",
    last_position: "Any",
    num_rows: "Any",
    num_pages: "Any",
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """Store a sequence's new entries of one head; where the first ROWS stand is known already."""
    store_new(
        x, keys, values, slot, real, cosine, sine, sequence, head, 0, num_rows,
        GROUP, NUM_KV_HEADS, WIDTH, BLOCK_K,
    )  # fmt: skip
    for block in range(ROWS, num_rows, ROWS):
        more, more_real, more_cosine, more_sine = new_entries(
            newest, writes, pages, cos, sin, sequence, block, stop, first, last_position, num_rows, num_pages,
            WIDTH, PAGE, BLOCK_K,
        )  # fmt: skip
        store_new(
            x, keys, values, more, more_real, more_cosine, more_sine, sequence, head, block, num_rows,
            GROUP, NUM_KV_HEADS, WIDTH, BLOCK_K,
        )  # fmt: skip
    tl.debug_barrier()  # all threads' entries are stored before any thread reads them
