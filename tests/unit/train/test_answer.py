"""Batched answers against one prompt at a time."""

import torch

from slipstream.attention.dense import DenseAttend
from slipstream.train.answer import Answerer, AnswerOptions, waves
from tests.unit.train import parts

STOPS = (2, 11)


@torch.no_grad()
def naive_greedy(target, prompt, max_tokens):
    ids = list(prompt)
    for _ in range(max_tokens):
        final = target(torch.tensor(ids), DenseAttend(1, len(ids), device=parts.CPU)).final_TD
        ids.append(int(target.logits(final[-1:]).argmax()))
        if ids[-1] in STOPS:
            break
    return ids


def test_batched_greedy_answers_equal_one_by_one_decoding():
    target = parts.target_model()
    prompts = [[3 + row] * (1 + row % 5) + [17 + row] for row in range(11)]
    answerer = Answerer(target, AnswerOptions(max_tokens=40, batch=4, stop_ids=STOPS))
    found = answerer.answer(prompts, [0.0] * len(prompts))
    assert [one.tokens for one in found] == [naive_greedy(target, prompt, 40) for prompt in prompts]
    assert [one.num_prompt for one in found] == [len(prompt) for prompt in prompts]
    assert [one.cut for one in found] == [one.tokens[-1] not in STOPS for one in found]
    assert any(one.cut for one in found)
    assert not all(one.cut for one in found)


def test_sampled_rows_leave_greedy_rows_alone():
    target = parts.target_model()
    prompts = [[3, 4, 5], [6, 7, 8]] * 3
    options = AnswerOptions(max_tokens=12, batch=6, stop_ids=STOPS, min_p=0.02)
    found = Answerer(target, options).answer(prompts, [0.0, 2.0] * 3)
    assert found[0].tokens == naive_greedy(target, prompts[0], 12)
    assert len({tuple(one.tokens) for one in found[1::2]}) > 1


def test_draws_follow_the_targets_distribution():
    target = parts.target_model(scale=2.0)
    answerer = Answerer(target, AnswerOptions(max_tokens=1, batch=4000, stop_ids=STOPS))
    found = answerer.answer([[3, 4, 5]] * 4000, [0.8] * 4000)
    drawn = torch.bincount(torch.tensor([one.tokens[-1] for one in found]), minlength=61) / 4000
    final = target(torch.tensor([3, 4, 5]), DenseAttend(1, 3, device=parts.CPU)).final_TD
    wanted = (target.logits(final[-1]) / 0.8).softmax(-1)
    assert float((drawn - wanted).abs().sum() / 2) < 0.08


def test_waves_hold_every_row_once_and_shortest_first():
    lengths = [5, 1, 9, 3, 3]
    found = list(waves(lengths, 2))
    assert sorted(row for rows in found for row in rows) == [0, 1, 2, 3, 4]
    assert found[0] == [1, 3]
