"""Head and soft cross entropy in one pass over chunks of rows: no [rows, V] tensor outlives its chunk.

The gradients are made in the forward pass, where the chunk's logits still exist (as in Liger, Hsu et al. 2024).

Shape letters: R rows, S teacher rows, D draft hidden, V draft vocabulary, N rows of a chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

OUT_OF_VOCABULARY = -1
CHUNK_ELEMENTS = 1 << 26  # of fp32 logits: 256 MiB


ChunkGradient = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftTargets:
    """Where one step's rows find their teacher."""

    probabilities_SV: Tensor  # bf16 on CUDA
    choices_S: Tensor  # the teacher's top draft id; OUT_OF_VOCABULARY where the draft cannot say it
    rows_R: Tensor  # row -> teacher row
    weights_R: Tensor  # fp32; 0 = gives no loss


def chunk_gradient(logits_NV: Tensor, teacher_NV: Tensor, weights_N: Tensor) -> tuple[Tensor, Tensor]:
    """Losses [N] and the gradient with respect to the logits [N, V]."""
    teacher_NV = teacher_NV.float()
    log_NV = logits_NV.log_softmax(-1)
    losses_N = -(teacher_NV * log_NV).sum(-1) * weights_N
    grad_NV = log_NV.exp() * teacher_NV.sum(-1, keepdim=True) - teacher_NV
    return losses_N, grad_NV * weights_N[:, None]


def soft_cross_entropy(
    hidden_RD: Tensor,
    head_VD: Tensor,
    targets: SoftTargets,
    *,
    chunk_rows: int | None = None,
    gradient: ChunkGradient = chunk_gradient,
) -> tuple[Tensor, Tensor]:
    """Weighted sum of -sum p log softmax(hidden head^T), and whether each row's top choice is the teacher's [R].

    gradient: `chunk_gradient`, or the same compiled.
    """
    chunk = chunk_rows or max(1, CHUNK_ELEMENTS // head_VD.shape[0])
    return _SoftCrossEntropy.apply(hidden_RD, head_VD, targets, chunk, gradient)


class _SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_RD: Tensor, head_VD: Tensor, targets: SoftTargets, chunk: int, gradient: ChunkGradient
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden_RD.device.type, enabled=False):
            head = head_VD.detach().float()
            hidden_grad_RD = torch.zeros_like(hidden_RD)
            head_grad_VD = torch.zeros_like(head)
            loss = head.new_zeros(())
            hits_R = torch.zeros(hidden_RD.shape[0], dtype=torch.bool, device=hidden_RD.device)
            for start in range(0, hidden_RD.shape[0], chunk):
                rows = slice(start, start + chunk)
                hidden_ND = hidden_RD[rows].detach().float()
                logits_NV = hidden_ND @ head.T
                teacher_NV = targets.probabilities_SV[targets.rows_R[rows]]
                hits_R[rows] = logits_NV.argmax(-1) == targets.choices_S[targets.rows_R[rows]]
                losses_N, grad_NV = gradient(logits_NV, teacher_NV, targets.weights_R[rows])
                loss += losses_N.sum()
                hidden_grad_RD[rows] = (grad_NV @ head).to(hidden_grad_RD.dtype)
                head_grad_VD.addmm_(grad_NV.T, hidden_ND)
        ctx.save_for_backward(hidden_grad_RD, head_grad_VD)
        ctx.mark_non_differentiable(hits_R)
        return loss, hits_R

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_grad_RD, head_grad_VD = ctx.saved_tensors
        scale = grads[0]
        return hidden_grad_RD * scale.to(hidden_grad_RD.dtype), head_grad_VD * scale, None, None, None
