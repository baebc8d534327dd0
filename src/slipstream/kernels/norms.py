"""RMS norm with the residual added on the way, and sums of squares for products that norm their own input.

Shape letters: T rows, D width.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.launch import assert_rows, empty_like_rows, launch, power_of_two
from slipstream.kernels.order import after_previous, before_next


@triton.jit
def norm_kernel(
    x: "Any",
    delta: "Any",
    weight: "Any",
    total: "Any",
    out: "Any",
    squares: "Any",
    ids: "Any",
    eps: "Any",
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One row; ids: which row of x it is."""
    columns = tl.arange(0, BLOCK)
    used = columns < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    if squares is not None:
        before_next(PDL)  # a forward begins
    else:
        after_previous(PDL)
    source = at
    if ids is not None:
        source = tl.load(ids + tl.program_id(0)).to(tl.int64) * WIDTH + columns
    row = tl.load(x + source, mask=used, other=0.0)
    if delta is not None:
        added = row.to(tl.float32) + tl.load(delta + at, mask=used, other=0.0).to(tl.float32)
        row = added.to(x.dtype.element_ty)
    if total is not None:
        tl.store(total + at, row, mask=used)
    wide = row.to(tl.float32)
    sum_squares = tl.sum(wide * wide, axis=0)
    if squares is not None:
        tl.store(squares + tl.program_id(0), sum_squares)
    scale = 1.0
    if squares is None:
        scale = 1.0 / tl.sqrt(sum_squares / WIDTH + eps)
    normed = wide * scale * tl.load(weight + columns, mask=used, other=0.0).to(tl.float32)
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=used)


def add_norm(
    x_TD: Tensor, delta_TD: Tensor | None, weight_D: Tensor, *, eps: float, pdl: bool = False
) -> tuple[Tensor, Tensor]:
    """The residual stream x + delta [T, D] (x itself without a delta) and its norm [T, D]."""
    total_TD = None if delta_TD is None else torch.empty_like(x_TD)
    out_TD = torch.empty_like(x_TD)
    _launch(x_TD, delta_TD, weight_D, total_TD, out_TD, None, None, eps, pdl=pdl)
    return x_TD if total_TD is None else total_TD, out_TD


def add_squares(
    x_TD: Tensor,
    weight_D: Tensor,
    delta_TD: Tensor | None = None,
    *,
    ids_T: Tensor | None = None,
    pdl: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The residual stream x + delta [T, D], and for a product's own norm each row's sum of squares, fp32 [T, 1], and
    the rows times the norm's weight. ids_T: which rows of x, a table then, the stream's are.
    """
    num_rows, width = (x_TD if ids_T is None else ids_T).shape[0], x_TD.shape[1]
    scaled_TD = empty_like_rows(x_TD, num_rows, width)
    total_TD = None if delta_TD is None and ids_T is None else torch.empty_like(scaled_TD)
    squares_T1 = empty_like_rows(x_TD, num_rows, 1, torch.float32)
    _launch(x_TD, delta_TD, weight_D, total_TD, scaled_TD, squares_T1, ids_T, 0.0, pdl=pdl)
    return x_TD if total_TD is None else total_TD, squares_T1, scaled_TD


def _launch(
    x_TD: Tensor,
    delta_TD: Tensor | None,
    weight_D: Tensor,
    total_TD: Tensor | None,
    out_TD: Tensor,
    squares_T1: Tensor | None,
    ids_T: Tensor | None,
    eps: float,
    *,
    pdl: bool,
) -> None:
    width = x_TD.shape[1]
    assert_rows(x_TD, delta_TD, ids_T)
    launch(
        norm_kernel, (out_TD.shape[0],), x_TD, delta_TD, weight_D, total_TD, out_TD, squares_T1, ids_T, eps,
        WIDTH=width, BLOCK=power_of_two(width), PDL=pdl, num_warps=8 if width > 2048 else 4, launch_pdl=pdl,
    )  # fmt: skip


@triton.jit
def pair_kernel(
    first: "Any",
    second: "Any",
    first_weight: "Any",
    second_weight: "Any",
    both: "Any",
    alone: "Any",
    ids: "Any",
    first_eps: "Any",
    second_eps: "Any",
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One of the two halves of one row; ids: which row of `first` it is."""
    columns, row, half = tl.arange(0, BLOCK), tl.program_id(0).to(tl.int64), tl.program_id(1)
    used = columns < WIDTH
    before_next(PDL)  # a draft's forward begins
    x, weight, eps, source = first, first_weight, first_eps, row
    if ids is not None:
        source = tl.load(ids + row).to(tl.int64)
    if half == 1:
        x, weight, eps, source = second, second_weight, second_eps, row
    wide = tl.load(x + source * WIDTH + columns, mask=used, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / WIDTH + eps)
    normed = wide * scale * tl.load(weight + columns, mask=used, other=0.0).to(tl.float32)
    rounded = normed.to(both.dtype.element_ty)
    tl.store(both + (2 * row + half) * WIDTH + columns, rounded, mask=used)
    if half == 1:
        tl.store(alone + row * WIDTH + columns, rounded, mask=used)


def pair_norms(
    first_TD: Tensor, second_TD: Tensor, weights_D: tuple[Tensor, Tensor], *, eps: tuple[float, float],
    ids_T: Tensor | None = None, pdl: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Two norms side by side [T, 2 D], as a draft's first layer reads them, and the second alone [T, D].

    ids_T: which rows of the first, a table then.
    """
    (num_rows, width), alone_TD = second_TD.shape, torch.empty_like(second_TD)
    assert_rows(first_TD, second_TD, ids_T)
    both_TC = empty_like_rows(second_TD, num_rows, 2 * width)
    launch(
        pair_kernel, (num_rows, 2), first_TD, second_TD, *weights_D, both_TC, alone_TD, ids_T, *eps,
        WIDTH=width, BLOCK=power_of_two(width), PDL=pdl, num_warps=8 if width > 2048 else 4, launch_pdl=pdl,
    )  # fmt: skip
    return both_TC, alone_TD
