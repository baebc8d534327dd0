"""The walked accept length against a decode that goes cycle by cycle."""

import numpy as np
import pytest
import torch

from slipstream.train.accept import measure, walk
from slipstream.train.answer import Answerer, AnswerOptions
from slipstream.train.conversations import Conversation, pack, until_loop, without_loop
from tests.unit.train import parts
from tests.unit.train.test_training_time_test import sequential


def greedy_conversations(target, num=4, max_tokens=24):
    options = AnswerOptions(max_tokens=max_tokens, batch=num, stop_ids=(2,))
    prompts = [[5, 7 + row, 9] for row in range(num)]
    return pack(Answerer(target, options).answer(prompts, [0.0] * num))


def naive_walk(draft, target, tokens, num_prompt, vocabulary, steps):
    """Serve: after each cycle extend over true features, then draft from the last emitted token."""
    features = target(tokens, parts_attend(tokens)).features_TF
    cycles, emitted, cursor, last = 0, 0, num_prompt, len(tokens) - 1

    def choose(step, normed):
        return vocabulary.ids_V[draft.logits(normed).argmax(-1)]

    while cursor < last:
        normed = sequential(draft, tokens[: cursor + 1], features, cursor - 1, steps, choose)
        drafted = choose(0, normed).tolist()
        kept = 0
        while kept < steps and cursor + 1 + kept <= last and drafted[kept] == int(tokens[cursor + 1 + kept]):
            kept += 1
        jump = min(kept + 1, last - cursor)
        cycles, emitted, cursor = cycles + 1, emitted + jump, cursor + jump
    return cycles, emitted


def parts_attend(tokens):
    from slipstream.attention.dense import DenseAttend

    return DenseAttend(1, len(tokens), device=tokens.device)


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_walk_equals_a_naive_sequential_decode(seed):
    target, draft, vocabulary = parts.made(seed, vocab_size=61)
    conversations = greedy_conversations(target)
    found = measure(draft, target, conversations, vocabulary, steps=4, batch_tokens=64)
    cycles, emitted = 0, 0
    for row in range(len(conversations)):
        tokens = torch.from_numpy(conversations.tokens(row).astype(np.int64))
        one = naive_walk(draft, target, tokens, int(conversations.prompts_C[row]), vocabulary, 4)
        cycles, emitted = cycles + one[0], emitted + one[1]
    assert (found.whole.cycles, found.whole.emitted) == (cycles, emitted)


def test_a_perfect_draft_is_accepted_whole():
    tokens = np.arange(20, dtype=np.int32)
    drafted = np.stack([np.arange(20) + 2 + step for step in range(4)], axis=1)
    found = walk(tokens, 4, drafted)
    assert (found.cycles, found.emitted) == (3, 15)
    assert found.by_position == [1.0, 1.0, 1.0, 1.0]


def test_a_useless_draft_has_accept_length_one():
    found = walk(np.arange(20, dtype=np.int32), 4, np.zeros((20, 4), dtype=np.int64))
    assert found.accept_length == 1.0


def test_an_answer_is_cut_where_it_begins_to_repeat():
    once = np.arange(40, dtype=np.int32)
    assert until_loop(once) == 40
    assert until_loop(np.concatenate((once, once))) == 40


def test_a_loop_is_dropped_from_training_but_for_its_beginning():
    once = list(range(40))
    looping = Conversation(tokens=[1, *once, *once, 2], num_prompt=1)
    kept = without_loop(looping, tail=5)
    assert kept.tokens == [1, *once, *once[:5]]
    assert kept.cut
    assert without_loop(Conversation(tokens=[1, *once], num_prompt=1), tail=5).tokens == [1, *once]
