"""The draft's vocabulary."""

import numpy as np
import pytest

from slipstream.train.conversations import FILE, load, save
from slipstream.train.words import choose_ids, coverage
from tests.unit.train import parts


def test_ids_are_exactly_as_many_as_asked_even_if_fewer_occur():
    counts = np.zeros(50, dtype=np.int64)
    counts[[7, 9]] = 3
    ids = choose_ids(counts, size=10, always=(40,))
    assert len(ids) == 10
    assert {7, 9, 40} <= set(ids.tolist())
    assert (np.diff(ids) > 0).all()


def test_ties_go_to_the_lower_id():
    counts = np.array([0, 5, 5, 5, 1])
    assert choose_ids(counts, size=2).tolist() == [1, 2]


def test_turn_ends_are_always_in():
    counts = np.arange(20)
    assert choose_ids(counts, size=3, always=(0, 1)).tolist() == [0, 1, 19]


def test_coverage_is_the_share_of_tokens():
    assert coverage(np.array([6, 3, 1]), np.array([0, 2])) == pytest.approx(0.7)


def test_a_vocabulary_larger_than_the_targets_is_refused():
    with pytest.raises(ValueError, match="--draft-vocab"):
        choose_ids(np.zeros(5, dtype=np.int64), size=6)


def test_conversations_come_back_as_they_were_saved(tmp_path):
    before = parts.conversations(6)
    save(before, tmp_path / FILE)
    after = load(tmp_path / FILE)
    assert after.tokens_N.tolist() == before.tokens_N.tolist()
    assert after.starts_C.tolist() == before.starts_C.tolist()
    assert after.prompts_C.tolist() == before.prompts_C.tolist()
    assert after.answer_counts(61).sum() == before.num_answer_tokens
