"""Where rows of a cycle stand, and what is kept of them: bookkeeping that would be a dozen operations of torch.

Shape letters: S places, W waiting rows, D depth + 1, E pages of a place, P pages of the pool, F feature width.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.launch import assert_rows, empty_like_rows, launch, power_of_two
from slipstream.kernels.order import after_previous

COLUMNS = 1024  # of a feature that one program copies


@triton.jit
def waiting_kernel(
    roots: "Any",
    waiting: "Any",
    addresses: "Any",
    last: "Any",
    NUM_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One place."""
    after_previous(PDL)
    place, rows = tl.program_id(0), tl.arange(0, BLOCK)
    root, count = tl.load(roots + place), tl.load(waiting + place)
    address = tl.where(rows < count, root - count + 1 + rows, -1)
    tl.store(addresses + place * NUM_ROWS + rows, address, mask=rows < NUM_ROWS)
    tl.store(last + place, place * NUM_ROWS + count - 1)


def waiting_rows(roots_S: Tensor, waiting_S: Tensor, num_rows: int, *, pdl: bool = False) -> tuple[Tensor, Tensor]:
    """Addresses [S, W] in the draft of positions that end just before each root, -1 beyond; each place's last row [S].

    All int64; the draft's entry of a position stands one further.
    """
    addresses_SW, last_S = roots_S.new_empty(roots_S.shape[0], num_rows), roots_S.new_empty(roots_S.shape[0])
    launch(
        waiting_kernel, (roots_S.shape[0],), roots_S, waiting_S, addresses_SW, last_S,
        NUM_ROWS=num_rows, BLOCK=power_of_two(num_rows), PDL=pdl, num_warps=1, launch_pdl=pdl,
    )  # fmt: skip
    return addresses_SW, last_S


@triton.jit(do_not_specialize=["num_pages"])
def keep_kernel(
    features: "Any",
    roots: "Any",
    pages: "Any",
    kept: "Any",
    num_pages: "Any",
    PAGE: tl.constexpr,
    NUM_DEPTHS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """A part of one row's feature, where the row ends a page."""
    after_previous(PDL)
    place, depth = tl.program_id(0) // NUM_DEPTHS, tl.program_id(0) % NUM_DEPTHS
    address = tl.load(roots + place) + depth
    if address % PAGE == PAGE - 1:
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        page = tl.load(pages + place * num_pages + address // PAGE).to(tl.int64)
        row = tl.load(features + tl.program_id(0).to(tl.int64) * WIDTH + columns, mask=columns < WIDTH, other=0.0)
        tl.store(kept + page * WIDTH + columns, row, mask=columns < WIDTH)


def keep_page_ends(
    features_SDF: Tensor, roots_S: Tensor, pages_SE: Tensor, kept_PF: Tensor, *, page: int, pdl: bool = False
) -> None:
    """Leave the features of rows at positions root + d that end a page, in that page's place."""
    assert_rows(features_SDF, pages_SE, kept_PF)
    num_places, num_depths, width = features_SDF.shape
    launch(
        keep_kernel, (num_places * num_depths, -(-width // COLUMNS)), features_SDF, roots_S, pages_SE, kept_PF,
        pages_SE.shape[1], PAGE=page, NUM_DEPTHS=num_depths, WIDTH=width, BLOCK=COLUMNS, PDL=pdl, num_warps=4,
        launch_pdl=pdl,
    )  # fmt: skip


@triton.jit
def take_kernel(
    first: "Any",
    second: "Any",
    ids: "Any",
    first_out: "Any",
    second_out: "Any",
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One row of one of the two tensors."""
    after_previous(PDL)
    source, to = first, first_out
    if tl.program_id(1) == 1:
        source, to = second, second_out
    columns = tl.arange(0, BLOCK)
    row = tl.load(ids + tl.program_id(0)).to(tl.int64)
    values = tl.load(source + row * WIDTH + columns, mask=columns < WIDTH, other=0.0)
    tl.store(to + tl.program_id(0).to(tl.int64) * WIDTH + columns, values, mask=columns < WIDTH)


def take_rows(first_TD: Tensor, second_TD: Tensor, ids_S: Tensor, *, pdl: bool = False) -> tuple[Tensor, Tensor]:
    """The rows `ids_S` of two tensors of one shape, [S, D] each."""
    assert_rows(first_TD, second_TD, ids_S)
    assert first_TD.shape == second_TD.shape, "the two hold the same rows"
    num_rows, width = ids_S.shape[0], first_TD.shape[1]
    found = empty_like_rows(first_TD, num_rows, width), empty_like_rows(second_TD, num_rows, width)
    launch(
        take_kernel, (num_rows, 2), first_TD, second_TD, ids_S, *found,
        WIDTH=width, BLOCK=power_of_two(width), PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return found
