"""What stands between the merged projection and attention, in one kernel: head norms, RoPE, the store into the pool.

Shape letters: T rows, H heads, G kv heads, K head width, C = (H + 2 G) K, F = K / 2, P positions, L slots of a layer.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.keys import Keys
from slipstream.kernels.launch import assert_rows, empty_like_rows, launch, power_of_two
from slipstream.kernels.order import after_previous


@triton.jit(do_not_specialize=["num_rows", "num_pages", "first", "last_position"])
def qkv_kernel(
    qkv: "Any",
    newest: "Any",
    writes: "Any",
    pages: "Any",
    cos: "Any",
    sin: "Any",
    query_norm: "Any",
    key_norm: "Any",
    queries: "Any",
    keys: "Any",
    values: "Any",
    eps: "Any",
    last_position: "Any",
    first: "Any",
    num_rows: "Any",
    num_pages: "Any",
    PAGE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_F: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One head of one row."""
    after_previous(PDL)
    row, head, columns = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK_F)
    used = columns < HALF
    start = qkv + (row.to(tl.int64) * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * (2 * HALF)
    low = tl.load(start + columns, mask=used, other=0.0)
    high = tl.load(start + HALF + columns, mask=used, other=0.0)
    position = tl.load(newest + row).to(tl.int32)
    address = position
    if writes is not None:
        address = tl.load(writes + row).to(tl.int32)
    page = tl.load(pages + (row // num_rows).to(tl.int64) * num_pages + tl.maximum(address, 0) // PAGE).to(tl.int64)
    slot = tl.where(address >= 0, page * PAGE + address % PAGE, 0)
    if head >= NUM_HEADS + NUM_KV_HEADS:
        to = values + (slot * NUM_KV_HEADS + head - NUM_HEADS - NUM_KV_HEADS) * (2 * HALF)
        tl.store(to + columns, low, mask=used)
        tl.store(to + HALF + columns, high, mask=used)
    else:
        wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
        if query_norm is not None:
            norm = query_norm if head < NUM_HEADS else key_norm
            mean = tl.sum(wide_low * wide_low + wide_high * wide_high, axis=0) / (2 * HALF)
            scale = 1.0 / tl.sqrt(mean + eps)
            wide_low *= scale * tl.load(norm + columns, mask=used, other=0.0).to(tl.float32)
            wide_high *= scale * tl.load(norm + HALF + columns, mask=used, other=0.0).to(tl.float32)
            wide_low = wide_low.to(qkv.dtype.element_ty).to(tl.float32)
            wide_high = wide_high.to(qkv.dtype.element_ty).to(tl.float32)
        at = tl.minimum(tl.maximum(position - first, 0), last_position).to(tl.int64) * HALF + columns
        cosines, sines = tl.load(cos + at, mask=used, other=0.0), tl.load(sin + at, mask=used, other=0.0)
        new_low = (wide_low * cosines - wide_high * sines).to(qkv.dtype.element_ty)
        new_high = (wide_high * cosines + wide_low * sines).to(qkv.dtype.element_ty)
        to = queries + (row.to(tl.int64) * NUM_HEADS + head) * (2 * HALF)
        if head >= NUM_HEADS:
            to = keys + (slot * NUM_KV_HEADS + head - NUM_HEADS) * (2 * HALF)
        tl.store(to + columns, new_low, mask=used)
        tl.store(to + HALF + columns, new_high, mask=used)


def rotate_and_store(
    qkv_TC: Tensor,
    keys: Keys,
    tables_PF: tuple[Tensor, Tensor],
    pool_LGK: tuple[Tensor, Tensor],
    *,
    num_heads: int,
    norms_K: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
    pdl: bool = False,
) -> Tensor:
    """Rotated queries [T, H, K]; keys (rotated) and values go to their slots of a layer's keys and values [L, G, K].

    A row stands at position newest - first, and its entry at its address of `writes`, or its newest; rows without one
    (-1) write slot 0. tables_PF: fp32 cosines and sines (positions beyond read the last row).
    norms_K: weights of the query norm and the key norm, where the model has them.
    """
    keys_LGK, values_LGK = pool_LGK
    num_kv_heads, width = keys_LGK.shape[1:]
    assert_rows(qkv_TC, keys_LGK, values_LGK, keys.pages, keys.newest, keys.writes)
    queries = empty_like_rows(qkv_TC, qkv_TC.shape[0], num_heads * width)
    query_norm, key_norm = norms_K or (None, None)
    launch(
        qkv_kernel, (qkv_TC.shape[0], num_heads + 2 * num_kv_heads),
        qkv_TC, keys.newest, keys.writes, keys.pages, *tables_PF, query_norm, key_norm, queries, keys_LGK, values_LGK,
        eps, tables_PF[0].shape[0] - 1, keys.first, keys.newest.shape[1], keys.pages.shape[1],
        PAGE=keys.page, NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HALF=width // 2,
        BLOCK_F=power_of_two(width // 2), PDL=pdl, num_warps=1, launch_pdl=pdl,
    )  # fmt: skip
    return queries.view(-1, num_heads, width)
