"""The end of a cycle of chains in one kernel: what is accepted, what is emitted, and where the next cycle begins.

Shape letters: S places, N rows of the chain, F fields of a place.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gumbel import mixed
from slipstream.kernels.launch import assert_rows, launch, power_of_two
from slipstream.kernels.order import after_previous


@triton.jit
def chain_kernel(
    tokens: "Any",
    targets: "Any",
    limits: "Any",
    seeds: "Any",
    positions: "Any",
    agreed: "Any",
    emitted: "Any",
    counts: "Any",
    share: "Any",
    NUM_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DECREED: tl.constexpr,
    WHOLE: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One place."""
    after_previous(PDL)
    place, rows = tl.program_id(0), tl.arange(0, BLOCK)
    at = place * NUM_ROWS + rows
    target = tl.load(targets + at, mask=rows < NUM_ROWS, other=-1)
    drafted = tl.load(tokens + at + 1, mask=rows + 1 < NUM_ROWS, other=-2)
    limit = tl.load(limits + place)
    if DECREED:
        hashed = mixed(mixed(tl.load(seeds + place)) + tl.load(positions + place))
        uniform = ((hashed >> 32) & 0xFFFFFFFF).to(tl.float64) * 2.3283064365386963e-10
        limit = tl.minimum(limit, WHOLE + (uniform < share).to(tl.int64))
    limit = tl.minimum(limit, NUM_ROWS - 1)
    refused = rows >= limit
    if not DECREED:
        refused = refused | (drafted != target)
    accepted = tl.min(tl.where(refused, rows, BLOCK), axis=0).to(tl.int64)
    if DECREED:
        target = tl.where(rows < accepted, drafted, target)
    count = accepted + 1
    if agreed is not None:
        count *= tl.load(agreed).to(tl.int64)
    tl.store(emitted + at, target, mask=rows < NUM_ROWS)
    tl.store(counts + place, count)


def accept_chains(
    tokens_SN: Tensor,
    targets_SN: Tensor,
    limits_S: Tensor,
    *,
    seeds_S: Tensor,
    positions_S: Tensor,
    decreed: float | None = None,
    agreed: Tensor | None = None,
    pdl: bool = False,
) -> tuple[Tensor, Tensor]:
    """What chains emit [S, N] and how much of it counts [S], as `verify/accept.py` says; all int64 and contiguous.

    decreed: an accept length, kept on average whatever the target says (`verify/synthetic.py`). agreed: a bool; without
    it nothing counts.
    """
    num_places, num_rows = tokens_SN.shape
    emitted_SN, counts_S = targets_SN.new_empty(num_places, num_rows), limits_S.new_empty(num_places)
    wanted = 0.0 if decreed is None else decreed - 1
    launch(
        chain_kernel, (num_places,), tokens_SN, targets_SN, limits_S, seeds_S, positions_S, agreed,
        emitted_SN, counts_S, wanted - math.floor(wanted), NUM_ROWS=num_rows, BLOCK=power_of_two(num_rows),
        DECREED=decreed is not None, WHOLE=math.floor(wanted), PDL=pdl, num_warps=1, launch_pdl=pdl,
    )  # fmt: skip
    return emitted_SN, counts_S


@triton.jit
def advance_kernel(
    fields: "Any",
    after: "Any",
    emitted: "Any",
    counts: "Any",
    depths: "Any",
    outcome: "Any",
    num_places: "Any",
    NUM_DEPTHS: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    DRAFTED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_W: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """All places; the order of the fields and of the outcome is that of runner/statics.py."""
    after_previous(PDL)
    place = tl.arange(0, BLOCK)
    real = place < num_places
    count = tl.load(counts + place, mask=real, other=0)
    width: tl.constexpr = 1 + NUM_DEPTHS + NUM_ROWS
    turn = tl.load(fields + 7 * num_places + place, mask=real, other=0)
    column = tl.arange(0, BLOCK_W)[None, :]
    is_token, at_row = (column > 0) & (column <= NUM_DEPTHS), column - NUM_DEPTHS - 1
    at_token = place[:, None] * NUM_DEPTHS + column - 1
    token = tl.load(emitted + at_token, mask=real[:, None] & is_token, other=0)
    depth = at_row + tl.zeros((BLOCK, BLOCK_W), tl.int64)  # of a chain
    if depths is not None:
        is_row = (at_row >= 0) & (at_row < NUM_ROWS)
        depth = tl.load(depths + place[:, None] * NUM_ROWS + at_row, mask=real[:, None] & is_row, other=0)
    left = tl.where(column == 0, count[:, None], tl.where(is_token, token, depth))
    to = outcome + (turn * num_places + place)[:, None] * width + column
    tl.store(to, left, mask=real[:, None] & (column < width))
    tl.store(after + 7 * num_places + place, 1 - turn, mask=real)
    taken = tl.load(fields + 5 * num_places + place, mask=real, other=0)
    count *= taken
    moved = count > 0
    before = tl.load(fields + place, mask=real, other=0)
    root = tl.load(emitted + place * NUM_DEPTHS + count - 1, mask=real & moved, other=0)
    waiting = tl.load(fields + 2 * num_places + place, mask=real, other=0)
    room = tl.load(fields + 6 * num_places + place, mask=real, other=0) - count
    limit = tl.load(fields + 3 * num_places + place, mask=real, other=0)
    position = tl.load(fields + num_places + place, mask=real, other=0)
    tl.store(after + place, tl.where(moved, root, before), mask=real)
    tl.store(after + num_places + place, position + count, mask=real)
    waits = waiting + count
    if DRAFTED:
        waits = tl.where(moved, count, waiting)
    tl.store(after + 2 * num_places + place, waits, mask=real)
    tl.store(after + 3 * num_places + place, tl.minimum(limit, tl.maximum(room - 1, 0)), mask=real)
    seed = tl.load(fields + 4 * num_places + place, mask=real, other=0)
    tl.store(after + 4 * num_places + place, seed, mask=real)
    tl.store(after + 5 * num_places + place, taken, mask=real)
    tl.store(after + 6 * num_places + place, room, mask=real)


def advance(
    fields_FS: Tensor,
    after_FS: Tensor,
    emitted_SD: Tensor,
    counts_S: Tensor,
    outcome_2SC: Tensor,
    *,
    drafted: bool,
    depths_SN: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """The fields of all places as the next cycle begins, into `after_FS`; what the host reads, into `outcome_2SC`.

    outcome_2SC: pinned memory of the host on a GPU; in the place whose turn it is: how many were emitted, the tokens,
    the depths of the rows, [S, 1 + D + N]. depths_SN: a chain's if left out.
    """
    (num_places, num_depths), width = emitted_SD.shape, outcome_2SC.shape[2]
    assert_rows(fields_FS, emitted_SD, after_FS, outcome_2SC, depths_SN)
    launch(
        advance_kernel, (1,), fields_FS, after_FS, emitted_SD, counts_S, depths_SN, outcome_2SC, num_places,
        NUM_DEPTHS=num_depths, NUM_ROWS=width - 1 - num_depths, DRAFTED=drafted, BLOCK=power_of_two(num_places),
        BLOCK_W=power_of_two(width), PDL=pdl, num_warps=1, launch_pdl=pdl,
    )  # fmt: skip
