"""The fused loss against plain autograd, and which slots it sees."""

import itertools

import numpy as np
import pytest
import torch

from slipstream.train.batches import load_batch
from slipstream.train.conversations import Conversation, pack
from slipstream.train.objective import run_target, score
from slipstream.train.options import LossOptions, Mask, Normalise
from slipstream.train.teacher import supervised
from slipstream.train.unroll import unroll_forced
from tests.unit.train import parts

FIRST = {Mask.SERVING: 2, Mask.SPECULATORS: 1, Mask.EAGLE: 0}  # m[t + this + i]


def plain_loss(draft, target, batch, vocabulary, options):
    """The formula, slot by slot mask and all, through autograd."""
    hidden = run_target(target, batch.tokens_BT)
    num_sequences, num_tokens = batch.tokens_BT.shape
    logits = (hidden.final_TD @ target.head.weight.T).view(num_sequences, num_tokens, -1)
    answer = torch.zeros(num_sequences, num_tokens + 9)
    for row, (begin, end) in enumerate(zip(batch.prompts_B, batch.lengths_B, strict=True)):
        answer[row, begin:end] = 1
    total = torch.zeros(())
    for step, normed in enumerate(unroll_forced(draft, batch.tokens_BT, hidden.features_TF, options.steps)):
        scores = draft.head(normed).view(num_sequences, num_tokens, -1).log_softmax(-1)
        summed, count = torch.zeros(()), 0
        for row, slot in itertools.product(range(num_sequences), range(num_tokens)):
            teacher = slot + 1 + step
            if teacher >= batch.lengths_B[row] or not answer[row, slot + FIRST[options.mask] + step]:
                continue
            if vocabulary.draft_ids_W[logits[row, teacher].argmax()] < 0:
                continue
            wanted = (logits[row, teacher, vocabulary.ids_V] / options.teacher_temperature).softmax(-1)
            summed = summed - (wanted * scores[row, slot]).sum()
            count += 1
        divisor = num_sequences * num_tokens if options.normalise is Normalise.TOKENS else max(1, count)
        total = total + options.decay**step * summed / divisor
    return total


@pytest.mark.parametrize("mask", Mask)
@pytest.mark.parametrize("normalise", Normalise)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_fused_loss_equals_the_formula_in_value_and_gradient(mask, normalise, temperature):
    target, draft, vocabulary = parts.made()
    batch = load_batch(parts.conversations(5), np.arange(5), device=parts.CPU)
    options = LossOptions(steps=3, mask=mask, normalise=normalise, teacher_temperature=temperature, chunk_rows=7)
    scores = score(draft, target, batch, vocabulary, options)
    scores.loss.backward()
    ours = {name: p.grad.clone() for name, p in draft.named_parameters() if p.grad is not None}
    draft.zero_grad()
    wanted = plain_loss(draft, target, batch, vocabulary, options)
    wanted.backward()
    torch.testing.assert_close(scores.loss, wanted, rtol=1e-5, atol=1e-5)
    assert ours.keys() == {name for name, p in draft.named_parameters() if p.requires_grad}
    for name, parameter in draft.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("mask", "first", "last"), [(Mask.SERVING, 3, 6), (Mask.SPECULATORS, 4, 7), (Mask.EAGLE, 5, 7)]
)
def test_masks_supervise_the_documented_teacher_positions(mask, first, last):
    conversation = Conversation(tokens=list(range(3, 11)), num_prompt=4)
    batch = load_batch(pack([conversation]), np.arange(1), device=parts.CPU)
    assert supervised(batch, mask).inside_S.tolist() == list(range(first, last + 1))


def test_chunks_change_nothing():
    target, draft, vocabulary = parts.made()
    batch = load_batch(parts.conversations(5), np.arange(5), device=parts.CPU)
    whole = score(draft, target, batch, vocabulary, LossOptions(steps=2))
    cut = score(draft, target, batch, vocabulary, LossOptions(steps=2, chunk_rows=1))
    torch.testing.assert_close(whole.loss, cut.loss)
    assert torch.equal(whole.top1_K, cut.top1_K)


def test_a_batch_without_supervised_tokens_is_refused():
    batch = load_batch(pack([Conversation(tokens=[3, 4, 5], num_prompt=3)]), np.arange(1), device=parts.CPU)
    with pytest.raises(ValueError, match="no token of this batch is supervised"):
        supervised(batch, Mask.SERVING)
