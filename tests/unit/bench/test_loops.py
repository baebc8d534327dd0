"""Where answers repeat themselves, and what is counted before that."""

import random

import numpy as np
import pytest

from slipstream.bench.cut import counts_until
from slipstream.text.loops import LOOP_GRAM, loop_start
from slipstream.train.accept import until_loop

WORD = list(range(LOOP_GRAM))


def test_an_answer_that_never_repeats_has_no_loop():
    assert loop_start(range(1000)) is None
    assert loop_start([]) is None
    assert loop_start(WORD) is None


def test_a_loop_begins_where_sixteen_ids_stood_before():
    assert loop_start([*WORD, 99, *WORD, 98]) == LOOP_GRAM + 1
    assert loop_start([*WORD, 99, *WORD[:-1], 98]) is None


def test_a_repeated_id_overlaps_itself():
    assert loop_start([7] * LOOP_GRAM) is None
    assert loop_start([7] * (LOOP_GRAM + 1)) == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_trainer_cuts_at_the_same_place(seed: int):
    draw = random.Random(seed)
    period = draw.randint(1, 30)
    tokens = [draw.randrange(50) for _ in range(draw.randint(0, 40))]
    tokens += [place % period for place in range(draw.randint(0, 80))]
    found = loop_start(tokens)
    assert until_loop(np.array(tokens, dtype=np.int32)) == (len(tokens) if found is None else found)


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(0, (0, 0)), (1, (0, 0)), (2, (1, 1)), (4, (1, 3)), (5, (2, 4)), (8, (3, 7)), (10, (4, 9))],
)
def test_a_cut_cycle_counts_the_tokens_that_were_kept(num_tokens: int, expected: tuple[int, int]):
    assert counts_until(num_tokens, runs=(3, 1, 3, 2)) == expected
