"""Words of 64 bits that every rank pushes to every other: the best score's id, or rank 0's words, in one kernel.

The mailboxes are those of `push.py`, and what it says of them holds here: all ranks push, whoever is listened to, so a
slot is free when its turn comes again. An empty word is one that neither a key nor a token id can be.

Shape letters: R words.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.launch import assert_rows, launch, power_of_two
from slipstream.kernels.mail import SLOTS, WARP, WORD_BYTES, Mail, empty_long, single_warps
from slipstream.kernels.post import box_of, inbox_of, receive, send

LOW_BITS = tl.constexpr(0xFFFFFFFF)


@triton.jit
def sortable_key(value: "Any", id: "Any") -> Any:
    """One integer whose order is that of (value, lowest id first), as verify/shards.py makes it; both zeros are one."""
    bits = value.to(tl.int32, bitcast=True)
    bits = tl.where(bits == -2147483648, 0, bits)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    return (ordered << 32) | (LOW_BITS - id)


@triton.jit(do_not_specialize=["count"])
def exchange_kernel(
    values: "Any",
    words: "Any",
    out: "Any",
    boxes: "Any",
    state: "Any",
    count: "Any",
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    SLOT: tl.constexpr,
    SLOT_COUNT: tl.constexpr,
    EMPTY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """All words; with values they are ids, and the best of all ranks is wanted instead of rank 0's."""
    at = tl.arange(0, BLOCK)
    used = at < count
    own = tl.load(words + at, mask=used, other=0)
    if values is not None:
        own = sortable_key(tl.load(values + at, mask=used, other=0.0), own)
    turn = tl.load(state, volatile=True)
    inbox = inbox_of(turn, at, SIZE, SLOT, SLOT_COUNT)
    send(boxes, inbox, own, used, RANK, SIZE, SLOT)
    mine = box_of(boxes, RANK, tl.int64)
    result = own
    for rank in tl.static_range(SIZE):
        found = own
        if rank != RANK:
            found = receive(mine + inbox + rank * SLOT, used, EMPTY, BLOCK)
        if rank == 0:
            result = found
        elif values is not None:
            result = tl.maximum(result, found)
        else:
            result = tl.where(found == EMPTY, found, result)  # never, but a wait for nothing breaks Triton 3.6
    if values is not None:
        result = LOW_BITS - (result & LOW_BITS)
    tl.store(out + at, result, mask=used)
    tl.debug_barrier()  # the turn has been read by all threads
    tl.store(state, turn + 1)


def best_of_ranks(values_R: Tensor, ids_R: Tensor, mail: Mail) -> Tensor:
    """The id [R] of the highest value over all ranks, the lowest id among equal ones; fp32 and int64, contiguous."""
    return _launch(values_R, ids_R, mail)


def words_of_first(words_R: Tensor, mail: Mail) -> Tensor:
    """Rank 0's int64 words, on every rank; contiguous, of any shape, none of them the empty word."""
    return _launch(None, words_R, mail)


def _launch(values_R: Tensor | None, words_R: Tensor, mail: Mail) -> Tensor:
    assert_rows(values_R, words_R)
    assert mail.takes_words(words_R), "the mailbox holds so many words of 64 bits"
    out, count = torch.empty_like(words_R), words_R.numel()
    launch(
        exchange_kernel, (1,), values_R, words_R, out, mail.boxes, mail.state, count,
        RANK=mail.rank, SIZE=mail.size, SLOT=mail.slot * mail.dtype.itemsize // WORD_BYTES, SLOT_COUNT=SLOTS,
        EMPTY=empty_long(mail.dtype), BLOCK=power_of_two(count, least=WARP), num_warps=single_warps(count),
    )  # fmt: skip
    return out
