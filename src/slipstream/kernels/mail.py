"""The mailboxes through which the ranks of a group push shares to one another; `push.py` says how they are used."""

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.kernels.launch import power_of_two

SLOTS = 2  # taken in turn; a power of two: the count of messages may wrap
WARP = 32  # threads
WORDS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
WORD_BYTES = 8
MOST_WORDS = 1024  # 64-bit words of a message: one program takes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """The mailboxes of a group, as one rank sees them; its messages go one after another, on one stream."""

    boxes: Tensor  # int64 [size]: addresses; each box holds [SLOTS, size, slot] elements, empty at first
    state: Tensor  # int32 [2], zero at first: messages so far, programs that have read the present one
    rank: int
    size: int
    slot: int  # elements of a message at most
    dtype: torch.dtype

    def takes(self, x: Tensor) -> bool:
        """Whether a message fits."""
        return x.dtype == self.dtype and 0 < x.numel() <= self.slot

    def takes_words(self, x: Tensor) -> bool:
        """Whether a message of 64-bit words fits."""
        most = min(MOST_WORDS, self.slot * self.dtype.itemsize // WORD_BYTES)
        return x.dtype == torch.int64 and 0 < x.numel() <= most


def empty_word(dtype: torch.dtype) -> int:
    """What an empty element of a mailbox reads as an integer: -0.0."""
    return torch.iinfo(WORDS[dtype]).min


def empty_long(dtype: torch.dtype) -> int:
    """The same for a word of 64 bits, which lies over several elements."""
    one = (1 << 8 * dtype.itemsize - 1).to_bytes(dtype.itemsize, "little")
    return int.from_bytes(one * (WORD_BYTES // dtype.itemsize), "little", signed=True)


def single_warps(width: int) -> int:
    """Warps of a program whose threads each hold elements of their own: with more, the compiler keeps copies."""
    return max(1, min(4, power_of_two(width) // WARP))
