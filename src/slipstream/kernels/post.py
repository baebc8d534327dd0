"""What every kernel does that writes into the other ranks' mailboxes; `push.py` says why it is safe.

Words are the elements of a message as integers; `inbox` is where they lie within each rank's part of a box.
"""

# The language of kernels is not typed as Python is: pyright sees its ranges, tuples and device calls as errors.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

from typing import Any

import triton
import triton.language as tl


@triton.jit
def inbox_of(turn: "Any", at: "Any", SIZE: tl.constexpr, SLOT: tl.constexpr, SLOT_COUNT: tl.constexpr) -> Any:
    """Where the elements `at` of message number `turn` lie; the number may have wrapped."""
    return (turn & (SLOT_COUNT - 1)).to(tl.int64) * SIZE * SLOT + at


@triton.jit
def box_of(boxes: "Any", rank: "Any", words: "Any") -> Any:
    """A rank's mailbox, as it holds such words; those of 64 bits go one by one."""
    return tl.multiple_of(tl.load(boxes + rank).to(tl.pointer_type(words)), 8 if words == tl.int64 else 16)


@triton.jit
def send(
    boxes: "Any", inbox: "Any", words: "Any", used: "Any", RANK: tl.constexpr, SIZE: tl.constexpr, SLOT: tl.constexpr
) -> None:  # fmt: skip
    """Write this rank's words to all others."""
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            tl.store(box_of(boxes, peer, words.dtype) + inbox + RANK * SLOT, words, mask=used)


@triton.jit
def receive(source: "Any", used: "Any", EMPTY: tl.constexpr, BLOCK: tl.constexpr) -> Any:
    """Wait until all words of another rank are there, and empty their place."""
    found = tl.load(source, mask=used, other=0, volatile=True)
    while tl.max((found == EMPTY).to(tl.int32), axis=0) > 0:
        found = tl.load(source, mask=used, other=0, volatile=True)
    tl.store(source, tl.full((BLOCK,), EMPTY, found.dtype), mask=used)
    return found
