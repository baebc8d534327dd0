"""Over a cut vocabulary every rank changes its own scores; tokens and log-probabilities are those of one rank."""

import math

import pytest

from slipstream import LLM
from slipstream.config.placement import placement
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.flow.output import Answer
from tests.loopback_ranks import LoopbackRanks
from tests.tensor_parallel import Pair, write_pair
from tests.tiny_engine import run_all

CHANGES = {
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.2,
    "logit_bias": {7: 3.0, 90: 2.0, 120: 2.5},
    "bad_word_ids": ((14,), (90, 7), (7, 90, 100)),
    "min_tokens": 9,
    "logprobs": 4,
    "prompt_logprobs": 2,
    "max_tokens": 16,
}
CASES = {
    "greedy": SamplingParams(**CHANGES),
    "warm": SamplingParams(**CHANGES, temperature=0.8, seed=5),
    "filtered": SamplingParams(**CHANGES, temperature=0.8, seed=5, top_k=30, top_p=0.9),
}
PROMPTS = [[5, 6, 7, 8, 90], [9, 10, 11], [100, 7, 90]]
STOPS = frozenset(range(0, 121, 5))
SHAPES = [speculation(3), speculation(3, 3, 8)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"), vocab_size=121, draft_vocab_size=83)


def answers(pair: Pair, tp: int, draft_tp: str, shape: Speculation, params: SamplingParams) -> list[Answer]:
    ranks = LoopbackRanks(pair, tp)
    ranks.place(placement(draft_tp, tp))
    try:
        return run_all(ranks.engine(shape), PROMPTS, params, stop_ids=STOPS)
    finally:
        ranks.close()


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_and_four_give_the_answers_of_one(pair: Pair, case: str, tp: int) -> None:
    alone = LLM(str(pair.model), draft=str(pair.draft), steps=0).engine
    wanted = run_all(alone, PROMPTS, CASES[case], stop_ids=STOPS)
    for shape, draft_tp in zip(SHAPES, ("1", "replicated"), strict=True):
        found = answers(pair, tp, draft_tp, shape, CASES[case])
        assert [each.tokens for each in found] == [each.tokens for each in wanted]
        for one, other in zip(wanted, found, strict=True):
            assert_close(one, other)
        assert sum(each.statistics.accepted for each in found) > 0


def assert_close(one: Answer, other: Answer) -> None:
    assert one.logprobs is not None
    assert other.logprobs is not None
    assert one.prompt_logprobs is not None
    assert other.prompt_logprobs is not None
    assert len(one.logprobs) == len(other.logprobs) == len(one.tokens)
    assert len(one.prompt_logprobs) == len(other.prompt_logprobs) == one.num_prompt - 1
    mine_all, theirs_all = (*one.prompt_logprobs, *one.logprobs), (*other.prompt_logprobs, *other.logprobs)
    for mine, theirs in zip(mine_all, theirs_all, strict=True):
        for a, b in zip((mine.chosen, *mine.top), (theirs.chosen, *theirs.top), strict=True):
            assert a.token == b.token
            assert math.isclose(a.raw, b.raw, abs_tol=1e-4)
            assert a.processed == b.processed or math.isclose(a.processed, b.processed, abs_tol=1e-4)
