"""Run a draft over whole conversations, several steps deep.

Shape letters: B sequences, T tokens of each, R = B * T packed rows, F features, D draft hidden, V draft vocabulary.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.train.attend import TrainingAttend


def unroll_forced(draft: Eagle3Draft, tokens_BT: Tensor, features_RF: Tensor, steps: int) -> Iterator[Tensor]:
    """Yield each step's normed hidden states [R, D], fed the conversation's own tokens."""
    attend = TrainingAttend(*tokens_BT.shape, device=tokens_BT.device)
    hidden_RD = draft.fuse(features_RF).float()
    for step in range(steps):
        attend.begin(step)
        out = draft(shifted(tokens_BT, 1 + step), hidden_RD, attend)
        yield out.normed_TD
        hidden_RD = out.next_TD


def unroll_drafted(
    draft: Eagle3Draft, tokens_BT: Tensor, features_RF: Tensor, steps: int, *, ids_V: Tensor
) -> Iterator[Tensor]:
    """Yield each step's drafted target ids [R], fed the draft's own choices from the second step on."""
    attend = TrainingAttend(*tokens_BT.shape, device=tokens_BT.device)
    hidden_RD, tokens_R = draft.fuse(features_RF).float(), shifted(tokens_BT, 1)
    for step in range(steps):
        attend.begin(step)
        out = draft(tokens_R, hidden_RD, attend)
        tokens_R = ids_V[draft.logits(out.normed_TD).argmax(-1)]
        yield tokens_R
        hidden_RD = out.next_TD


def shifted(tokens_BT: Tensor, by: int) -> Tensor:
    """Token t + by beside slot t, zeros at the end: [R]."""
    keep = max(0, tokens_BT.shape[1] - by)
    return F.pad(tokens_BT[:, tokens_BT.shape[1] - keep :], (0, tokens_BT.shape[1] - keep)).flatten()


def autocast(device: torch.device) -> torch.autocast:
    """Bfloat16 products on CUDA; plain arithmetic elsewhere."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
