"""All-reduce by writing each share into the other ranks' mailboxes; what has arrived is told by the data itself.

A mailbox is empty where it holds -0.0, which no share does once zeros are made positive. A rank writes its share to
each other rank over the link, waits until its own mailbox is full, adds in rank order, rounding after each addition,
and empties what it has read: one way over the link, and no barrier. (NCCL's LL protocol and the one-shot all-reduce of
TensorRT-LLM tell arrival the same way.)

Why two slots, taken in turn, are enough: a rank writes message n + 2 only after it has read message n + 1 of every
other rank, which that rank wrote after its kernel of message n had ended, so had emptied the slot. Messages are counted
on the device, because captured graphs replay in any order; the shapes of two messages need not agree.

All programs of a launch must be on the device at once, here and there: the message is bounded (`Mail.slot`). And no
two threads may poll the same element: one could empty it before the other has seen it (`single_warps`).

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
from slipstream.kernels.mail import SLOTS, Mail, empty_word, single_warps
from slipstream.kernels.order import after_previous
from slipstream.kernels.post import box_of, inbox_of, receive, send

FLAT_WIDTH = 4096  # elements of a program where no rows matter


@triton.jit
def push_kernel(
    share: "Any", residual: "Any", weight: "Any", total: "Any", squares: "Any", scaled: "Any", boxes: "Any",
    state: "Any", numel: "Any", RANK: tl.constexpr, SIZE: tl.constexpr, SLOT: tl.constexpr, SLOT_COUNT: tl.constexpr,
    EMPTY: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """One row of WIDTH elements; with a residual also what `add_squares` leaves."""
    columns = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    used = columns < WIDTH
    if residual is None:
        used &= at < numel
    word = tl.int16 if share.dtype.element_ty == tl.bfloat16 else tl.int32
    mine = box_of(boxes, RANK, word)
    scale, before = 1.0, 0.0
    if residual is not None:
        scale = tl.load(weight + columns, mask=used, other=0.0).to(tl.float32)
    after_previous(PDL)
    turn = tl.load(state, volatile=True)
    inbox = inbox_of(turn, at, SIZE, SLOT, SLOT_COUNT)
    words = tl.load(share + at, mask=used, other=0.0).to(word, bitcast=True)
    words = tl.where(words == EMPTY, 0, words).to(word)
    send(boxes, inbox, words, used, RANK, SIZE, SLOT)
    if residual is not None:
        before = tl.load(residual + at, mask=used, other=0.0).to(tl.float32)
    row = tl.zeros((BLOCK,), share.dtype.element_ty)
    for rank in tl.static_range(SIZE):
        found = words
        if rank != RANK:
            found = receive(mine + inbox + rank * SLOT, used, EMPTY, BLOCK)
        value = found.to(share.dtype.element_ty, bitcast=True)
        row = value if rank == 0 else (row.to(tl.float32) + value.to(tl.float32)).to(share.dtype.element_ty)
    if residual is not None:
        row = (before + row.to(tl.float32)).to(share.dtype.element_ty)
        wide = row.to(tl.float32)
        tl.store(squares + tl.program_id(0), tl.sum(wide * wide, axis=0))
        tl.store(scaled + at, (wide * scale).to(scaled.dtype.element_ty), mask=used)
    tl.store(total + at, row, mask=used)
    tl.debug_barrier()  # the turn has been read by all threads
    if tl.atomic_add(state + 1, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.store(state + 1, 0)
        tl.store(state, turn + 1)


def push_sum(x: Tensor, mail: Mail, *, out: Tensor | None = None, pdl: bool = False) -> Tensor:
    """x summed over the ranks, who call this together; x: contiguous, and `mail.takes` it."""
    total = torch.empty_like(x) if out is None else out
    _launch(x, None, None, total, None, None, mail, width=FLAT_WIDTH, pdl=pdl)
    return total


def push_add_squares(
    x_TD: Tensor, delta_TD: Tensor, weight_D: Tensor, mail: Mail, *, pdl: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """`add_squares` of x and the ranks' deltas, summed, in one kernel: the same bits as one after the other."""
    num_rows, width = x_TD.shape
    assert_rows(x_TD)
    total_TD, scaled_TD = torch.empty_like(x_TD), torch.empty_like(x_TD)
    squares_T1 = empty_like_rows(x_TD, num_rows, 1, torch.float32)
    _launch(delta_TD, x_TD, weight_D, total_TD, squares_T1, scaled_TD, mail, width=width, pdl=pdl)
    return total_TD, squares_T1, scaled_TD


def _launch(
    share: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    total: Tensor,
    squares: Tensor | None,
    scaled: Tensor | None,
    mail: Mail,
    *,
    width: int,
    pdl: bool,
) -> None:
    assert_rows(share)
    assert mail.takes(share), "the mailbox holds messages of its dtype and size"
    launch(
        push_kernel, (-(-share.numel() // width),), share, residual, weight, total, squares, scaled, mail.boxes,
        mail.state, share.numel(), RANK=mail.rank, SIZE=mail.size, SLOT=mail.slot, SLOT_COUNT=SLOTS,
        EMPTY=empty_word(mail.dtype), WIDTH=width, BLOCK=power_of_two(width), PDL=pdl,
        num_warps=8 if width > 2048 else single_warps(width), launch_pdl=pdl,
    )  # fmt: skip
