"""The map between a pruned draft vocabulary and the target's.

Checkpoints hold `d2t` as offsets: target id = draft id + d2t[draft id].

Shape letters: V draft vocabulary, W target vocabulary.
"""

import torch
from torch import Tensor


def target_ids(offsets_V: Tensor, *, target_vocab_size: int) -> Tensor:
    """Target ids [V] from the offsets of a checkpoint's d2t.

    Raises:
        ValueError: ids outside the target's vocabulary, or not strictly ascending.
    """
    ids_V = torch.arange(offsets_V.shape[0]) + offsets_V.to(device="cpu", dtype=torch.int64)
    if int(ids_V.min()) < 0 or int(ids_V.max()) >= target_vocab_size:
        raise ValueError(
            f"the draft's d2t maps to ids {int(ids_V.min())}..{int(ids_V.max())}, outside the target's vocabulary of"
            f" {target_vocab_size}; the draft belongs to another target"
        )
    if bool((ids_V[1:] <= ids_V[:-1]).any()):
        raise ValueError("the draft's d2t does not map to ascending, distinct target ids; the file is damaged")
    return ids_V


def marked_ids(mask_W: Tensor, *, draft_vocab_size: int) -> Tensor:
    """Target ids [V] that a checkpoint's t2d [W] marks.

    Raises:
        ValueError: it marks another number of ids than the head has rows.
    """
    ids_V = mask_W.to(device="cpu", dtype=torch.bool).nonzero()[:, 0]
    if ids_V.shape[0] != draft_vocab_size:
        raise ValueError(f"the draft's t2d marks {ids_V.shape[0]} ids but its head has {draft_vocab_size} rows")
    return ids_V


def offsets(ids_V: Tensor) -> Tensor:
    """d2t offsets [V] from ascending target ids."""
    return ids_V.to(torch.int64) - torch.arange(ids_V.shape[0])


def membership(ids_V: Tensor, *, target_vocab_size: int) -> Tensor:
    """t2d [W]: which target ids the draft can say."""
    mask_W = torch.zeros(target_vocab_size, dtype=torch.bool)
    mask_W[ids_V] = True
    return mask_W


def identity_ids(vocab_size: int) -> Tensor:
    """The map of a draft that covers the whole vocabulary."""
    return torch.arange(vocab_size)
