"""The loss of one batch: the target runs inside the step, the draft unrolls, each step meets its teacher.

Shape letters: B sequences, T tokens of each, R = B * T packed rows, K steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.attention.dense import DenseAttend
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.models.decoder import Decoder, Hidden
from slipstream.train.batches import TrainBatch
from slipstream.train.loss import ChunkGradient, chunk_gradient, soft_cross_entropy
from slipstream.train.options import LossOptions, Normalise
from slipstream.train.teacher import DraftVocabulary, supervised, teach
from slipstream.train.unroll import autocast, unroll_forced


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What one batch gave; everything stays on the device."""

    loss: Tensor  # decayed sum over steps
    losses_K: Tensor  # each step's normalised loss
    top1_K: Tensor  # share of supervised slots whose top choice is the target's; out of vocabulary counts as wrong
    accept_length: Tensor  # 1 + joint prefix hits over supervised slots, own tokens fed (optimistic)


@torch.no_grad()
def run_target(target: Decoder, tokens_BT: Tensor) -> Hidden:
    """Final hidden states and features of whole conversations."""
    attend = DenseAttend(*tokens_BT.shape, device=tokens_BT.device)
    return target(tokens_BT.flatten(), attend)


def score(
    draft: Eagle3Draft,
    target: Decoder,
    batch: TrainBatch,
    vocabulary: DraftVocabulary,
    options: LossOptions,
    *,
    gradient: ChunkGradient = chunk_gradient,
) -> Scores:
    """Loss and top-1 of every training-time-test step.

    Raises:
        ValueError: no token of the batch is supervised.
    """
    hidden = run_target(target, batch.tokens_BT)
    assert hidden.features_TF is not None, "the target captures what the draft's config names"
    positions = supervised(batch, options.mask)
    teacher = teach(hidden.final_TD, target.head.weight, positions, vocabulary, temperature=options.teacher_temperature)
    hits_RK = torch.zeros(batch.tokens_BT.numel(), options.steps, device=batch.tokens_BT.device)
    losses, top1 = [], []
    with autocast(batch.tokens_BT.device):
        unrolled = unroll_forced(draft, batch.tokens_BT, hidden.features_TF.float(), options.steps)
        for step, normed_RD in enumerate(unrolled):
            slots_R, targets = teacher.at_step(step)
            loss, hits_R = soft_cross_entropy(
                normed_RD[slots_R], draft.head.weight, targets, chunk_rows=options.chunk_rows, gradient=gradient
            )
            valid = targets.weights_R.sum().clamp(min=1)
            losses.append(loss / (batch.tokens_BT.numel() if options.normalise is Normalise.TOKENS else valid))
            hits_RK[slots_R, step] = hits_R.float()
            top1.append(hits_R.float().mean())
    losses_K = torch.stack(losses)
    decays_K = options.decay ** torch.arange(options.steps, device=losses_K.device)
    return Scores(
        loss=(losses_K * decays_K).sum(),
        losses_K=losses_K.detach(),
        top1_K=torch.stack(top1),
        accept_length=1 + hits_RK[teacher.at_step(0)[0]].cumprod(-1).sum(-1).mean(),
    )
