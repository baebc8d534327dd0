"""Cut conversations into batches of like length, in an order that seed and epoch alone decide.

Shape letters: B sequences, T tokens of each (right-padded), C conversations.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.train.conversations import Conversations

POOL_BATCHES = 32  # lengths are sorted within a pool of about this many batches
ROUND_TOKENS = 8  # T is a multiple of this


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """One step's conversations."""

    tokens_BT: Tensor  # on the device
    lengths_B: NDArray[np.int64]  # on the host, so that nothing synchronises
    prompts_B: NDArray[np.int64]

    @property
    def num_tokens(self) -> int:
        """Tokens that are no padding."""
        return int(self.lengths_B.sum())

    @property
    def num_answer_tokens(self) -> int:
        """Tokens the target wrote."""
        return int((self.lengths_B - self.prompts_B).sum())


def epoch_plan(lengths_C: NDArray[np.int64], *, batch_tokens: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """Rows of each batch of an epoch: every conversation once, B * T at most batch_tokens (or B = 1)."""
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths_C))
    pool = max(1, int(POOL_BATCHES * batch_tokens / max(1.0, float(lengths_C.mean()))))
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(order), pool):
        rows = order[start : start + pool]
        batches += _cut(rows[np.argsort(lengths_C[rows], kind="stable")], lengths_C, batch_tokens)
    return [batches[index] for index in random.permutation(len(batches))]


def _cut(rows: NDArray[np.int64], lengths_C: NDArray[np.int64], batch_tokens: int) -> list[NDArray[np.int64]]:
    """Cut rows sorted by length, longest last in each batch."""
    batches, start = [], 0
    for stop in range(1, len(rows) + 1):
        full = stop < len(rows) and (stop + 1 - start) * round_up(int(lengths_C[rows[stop]])) > batch_tokens
        if full or stop == len(rows):
            batches.append(rows[start:stop])
            start = stop
    return batches


def load_batch(conversations: Conversations, rows: NDArray[np.int64], *, device: torch.device) -> TrainBatch:
    """Pad some conversations into a rectangle on the device."""
    lengths_B = conversations.lengths_C[rows]
    tokens_BT = np.zeros((len(rows), round_up(int(lengths_B.max()))), dtype=np.int64)
    for index, row in enumerate(rows):
        tokens_BT[index, : lengths_B[index]] = conversations.tokens(int(row))
    return TrainBatch(
        tokens_BT=to_device(tokens_BT, device),
        lengths_B=lengths_B,
        prompts_B=conversations.prompts_C[rows].astype(np.int64),
    )


def to_device(values: NDArray[np.int64], device: torch.device) -> Tensor:
    """Copy an array without waiting for the device."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def round_up(num_tokens: int) -> int:
    """The padded length of a batch."""
    return -(-num_tokens // ROUND_TOKENS) * ROUND_TOKENS
