"""The rows of a shard of a table: zeros where another rank holds the row.

Shape letters: T rows, D width, V rows of the shard.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.launch import assert_rows, empty_like_rows, launch, power_of_two


@triton.jit
def lookup_kernel(
    table: "Any", ids: "Any", out: "Any", first: "Any", held: "Any", WIDTH: tl.constexpr, BLOCK: tl.constexpr
) -> None:  # fmt: skip
    """One row."""
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    local = tl.load(ids + row).to(tl.int64) - first + tl.zeros((BLOCK,), tl.int64)
    used = columns < WIDTH
    found = tl.load(table + local * WIDTH + columns, mask=used & (local >= 0) & (local < held), other=0.0)
    tl.store(out + row * WIDTH + columns, found, mask=used)


def shard_rows(table_VD: Tensor, ids_T: Tensor, *, first: int) -> Tensor:
    """Rows [T, D] of the ids that lie in [first, first + V), zeros for the others."""
    (held, width), num_rows = table_VD.shape, ids_T.shape[0]
    assert_rows(table_VD, ids_T)
    out = empty_like_rows(table_VD, num_rows, width)
    launch(
        lookup_kernel, (num_rows,), table_VD, ids_T, out, first, held, WIDTH=width, BLOCK=power_of_two(width),
        num_warps=8 if width > 2048 else 4,
    )  # fmt: skip
    return out
