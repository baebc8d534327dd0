"""Ranks whose scores differ still emit the same tokens: one decision reaches all, or a cycle is run again."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from slipstream.config.placement import Placement, placements
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import PLAIN, Speculation, speculation
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.orders import TellShare
from slipstream.flow.request import Request
from slipstream.runner.rank import Rank
from slipstream.runner.worker import Divergence
from tests.loopback_ranks import LoopbackRanks, add_noise
from tests.tensor_parallel import Pair, write_pair
from tests.tiny_engine import NoStops, run_all, some_prompts

SHAPES = {"chain": speculation(3), "tree": speculation(3, 3, 8)}
SHORT_SHAPES = {"chain": speculation(2), "tree": speculation(2, 2, 4)}
GREEDY = SamplingParams(max_tokens=120)
SAMPLED = SamplingParams(max_tokens=120, temperature=0.8, seed=5)
FILTERED = SamplingParams(max_tokens=120, temperature=0.8, seed=6, top_p=0.9, top_k=40)
PARAMS = (GREEDY, SAMPLED, FILTERED)
PROMPTS = some_prompts(2, longest=30)
CYCLES = 1000
REPLICATED = Placement(ranks=1, replicated=True)
NOISE = 0.5  # of scores whose two best lie about that far apart

Tokens = dict[SamplingParams, list[tuple[int, ...]]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"), hidden_size=16, num_hidden_layers=2)


@contextmanager
def opened(pair: Pair, tp: int) -> Iterator[LoopbackRanks]:
    ranks = LoopbackRanks(pair, tp)
    try:
        yield ranks
    finally:
        ranks.close()


def tokens(engine: Engine, params: SamplingParams, *, prompts: int = 2) -> list[tuple[int, ...]]:
    return [answer.tokens for answer in run_all(engine, PROMPTS[:prompts], params)]


def plain(ranks: LoopbackRanks, *params: SamplingParams) -> Tokens:
    ranks.place(Placement(ranks=1))
    engine = ranks.engine(PLAIN)
    return {each: tokens(engine, each) for each in params}


def settings(tp: int) -> list[tuple[Placement, Speculation]]:
    return [(placement, shape) for placement in placements(tp) for shape in SHAPES.values()]


@pytest.mark.parametrize("shape", SHORT_SHAPES.values(), ids=SHORT_SHAPES)
def test_a_thousand_cycles_with_noise_on_every_score_end_with_one_answer(pair: Pair, shape: Speculation) -> None:
    """LoopbackRanks compares every cycle's tokens; a rank that waits for another in vain ends the test."""
    turns = itertools.cycle([(params, placement) for params in PARAMS for placement in placements(2)])
    with opened(pair, 2) as ranks:
        while ranks.num_cycles < CYCLES:
            params, placement = next(turns)
            ranks.place(placement)
            engine = ranks.engine(shape)
            for rank in ranks.ranks:
                add_noise(rank, target=NOISE, draft=NOISE)
            tokens(engine, params, prompts=1)


def test_four_noisy_ranks_end_with_one_answer_under_every_placement(pair: Pair) -> None:
    with opened(pair, 4) as ranks:
        for placement, shape in settings(4):
            ranks.place(placement)
            engine = ranks.engine(shape)
            for rank in ranks.ranks:
                add_noise(rank, target=NOISE, draft=NOISE)
            tokens(engine, replace(SAMPLED, max_tokens=16))


@pytest.mark.parametrize("tp", [2, 4])
def test_noise_on_the_draft_alone_changes_no_token(pair: Pair, tp: int) -> None:
    params = [replace(each, max_tokens=60 // tp) for each in (GREEDY, SAMPLED)]
    with opened(pair, tp) as ranks:
        wanted = plain(ranks, *params)
        for placement, shape in settings(tp):
            ranks.place(placement)
            engine = ranks.engine(shape)
            for rank in ranks.ranks:
                add_noise(rank, target=0, draft=NOISE)
            assert {each: tokens(engine, each) for each in params} == wanted, (placement, shape)
            assert (reruns(ranks) > 0) == placement.replicated, "only a draft that is whole on each can differ"


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_forced_mismatch_runs_the_cycle_again_with_rank_zeros_tree(pair: Pair, shape: Speculation) -> None:
    params = replace(SAMPLED, max_tokens=60)
    with opened(pair, 2) as ranks:
        wanted = plain(ranks, params)[params]
        ranks.place(REPLICATED)
        answers = run_all(ranks.engine(shape), PROMPTS, params)
        assert reruns(ranks) == 0
        engine, before = ranks.engine(shape), ranks.num_cycles
        spoil_draft(ranks.ranks[1])
        again = run_all(engine, PROMPTS, params)
        assert [each.tokens for each in again] == [each.tokens for each in answers] == wanted
        assert [each.runs for each in again] == [each.runs for each in answers], "rank 0's tree is what counts"
        assert sum(each.statistics.accepted for each in again) > 0
        assert 0.9 * (ranks.num_cycles - before) < reruns(ranks) <= ranks.num_cycles - before


def test_a_rank_that_holds_another_answer_is_found_at_the_next_cycle(pair: Pair) -> None:
    with opened(pair, 2) as ranks:
        ranks.place(Placement(ranks=1))
        engine = ranks.engine(SHAPES["chain"])
        engine.add(Request(id=0, prompt=(5, 6, 7), params=GREEDY, seed=0), Ending(stop_ids=(), matcher=NoStops()))
        engine.step()
        resident = ranks.ranks[1].worker._residents[0]
        token, position = resident.expects
        resident.expects = (token, position - 1)
        with pytest.raises(Divergence, match=f"request 0 at cycle 1: rank 0 stands at token {token}, position"):
            engine.step()


def reruns(ranks: LoopbackRanks) -> int:
    """How many cycles were run twice since the pools were made; the same on all ranks."""
    counts = {share.reruns for share in ranks.order_all(TellShare())}
    assert len(counts) == 1, "every rank reruns, or none"
    return counts.pop()


def spoil_draft(rank: Rank) -> None:
    """Turn this rank's draft around: what it thought likeliest is the least likely now."""
    assert rank.worker.drafter is not None
    rank.worker.drafter.draft.model.norm.weight.data.neg_()
