"""Cycles in static shapes, run without a device's graphs, give the tokens of the cycles that they stand for."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.batch import Batch, Row
from slipstream.flow.output import Answer
from slipstream.flow.request import Request
from slipstream.kernels.reference import KEY_BLOCK
from slipstream.runner.flight import Flight
from slipstream.runner.graphs import GraphedCycle
from slipstream.runner.statics import shape_of
from tests.tiny_engine import TINY, NoStops, run_all, some_prompts, tiny_draft, tiny_engine, tiny_target

GREEDY = SamplingParams(max_tokens=40)
PROMPTS = some_prompts(6)


def static(engine: Engine) -> Engine:
    """The same engine with the code that a GPU captures."""
    worker = engine.executor
    config = worker.config
    worker.graphed = GraphedCycle(
        worker.cycle, max_batch=config.max_batch, steps=config.speculation.steps, capture=False
    )
    return engine


def runs(answers: list[Answer]) -> list[tuple[tuple[int, ...], tuple[int, ...], dict]]:
    return [(each.tokens, each.runs, each.statistics.named()) for each in answers]


@pytest.mark.parametrize("steps", range(5))
def test_tokens_runs_and_counts_equal_those_of_the_eager_cycle(steps: int) -> None:
    expected = run_all(tiny_engine(speculation(steps)), PROMPTS, GREEDY)
    found = run_all(static(tiny_engine(speculation(steps))), PROMPTS, GREEDY)
    assert runs(found) == runs(expected)
    assert steps == 0 or sum(each.statistics.accepted for each in found) > 0


def test_requests_come_and_go() -> None:
    """Three at a time, so that places change hands and one is spare."""
    expected = run_all(tiny_engine(speculation(3), max_batch=3), PROMPTS, GREEDY)
    assert runs(run_all(static(tiny_engine(speculation(3), max_batch=3)), PROMPTS, GREEDY)) == runs(expected)


def test_answers_end_exactly_at_the_end_of_the_context() -> None:
    prompts = [list(range(length)) for length in (57, 60, 62, 63)]
    params = SamplingParams(max_tokens=50)
    expected = run_all(tiny_engine(speculation(4), max_len=64), prompts, params)
    found = run_all(static(tiny_engine(speculation(4), max_len=64)), prompts, params)
    assert [len(each.tokens) for each in found] == [7, 4, 2, 1]
    assert runs(found) == runs(expected)


@pytest.mark.parametrize("ring", [4, 32])
def test_plain_cycles_leave_features_that_later_cycles_use(ring: int) -> None:
    """Plain, then drafting, then plain, with an extend now and then where the ring is small."""
    found = []
    for make in (lambda engine: engine, static):
        engine = make(tiny_engine(speculation(3), feature_ring=ring))
        found.append(run_in_turns(engine, (0, 3, 0, 2, 3)))
    assert found[0] == found[1]


def run_in_turns(engine: Engine, turns: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Each number of steps for nine cycles, over three requests."""
    params, cycle = SamplingParams(max_tokens=100), 0
    for index, prompt in enumerate(PROMPTS[:3]):
        request = Request(id=index, prompt=tuple(prompt), params=params, seed=0)
        engine.add(request, Ending(stop_ids=(), matcher=NoStops()))
    kept: list[tuple[int, ...]] = []
    while engine.busy:
        engine.speculation = speculation(turns[min(cycle // 9, len(turns) - 1)])
        kept += [(news.request, *news.new_tokens) for news in engine.step()]
        cycle += 1
    return kept


@pytest.mark.parametrize("shape", [speculation(3, 2, 4), speculation(3, 4, 12), speculation(1, 3, 3)], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_trees_give_the_tokens_and_counts_of_the_eager_cycle(shape: Speculation, temperature: float) -> None:
    params = SamplingParams(max_tokens=40, temperature=temperature)
    expected = run_all(tiny_engine(shape), PROMPTS, params)
    found = run_all(static(tiny_engine(shape)), PROMPTS, params)
    assert runs(found) == runs(expected)
    assert sum(each.statistics.accepted for each in found) > 0


@pytest.mark.parametrize(
    "more", [{"temperature": 0.7}, {"temperature": 1.0, "top_k": 5}, {"temperature": 1.2, "top_p": 0.9, "min_p": 0.05}]
)
def test_sampled_batches_with_greedy_companions_give_the_tokens_of_the_eager_cycle(more: dict) -> None:
    found = []
    for make in (lambda engine: engine, static):
        engine = make(tiny_engine(speculation(3)))
        each = [GREEDY, replace(GREEDY, seed=3, **more), GREEDY, replace(GREEDY, seed=4, **more)]
        found.append(runs(run_mixed(engine, PROMPTS[:4], each)))
    assert found[0] == found[1]


def run_mixed(engine: Engine, prompts: list[list[int]], params: list[SamplingParams]) -> list[Answer]:
    """Every prompt with parameters of its own, all together."""
    for index, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
        request = Request(id=index, prompt=tuple(prompt), params=each, seed=each.seed or 0)
        engine.add(request, Ending(stop_ids=(), matcher=NoStops()))
    found: dict[int, Answer] = {}
    while engine.busy:
        found |= {news.request: news.answer for news in engine.step() if news.answer is not None}
    return [found[index] for index in range(len(prompts))]


def test_sampled_companions_change_nothing() -> None:
    engine, prompts = static(tiny_engine(speculation(3), max_batch=2)), PROMPTS[:4]
    greedy = run_all(tiny_engine(speculation(3)), prompts, GREEDY)
    assert [each.tokens for each in run_all(engine, prompts, GREEDY)] == [each.tokens for each in greedy]
    sampled = SamplingParams(max_tokens=40, temperature=0.7, seed=3)
    expected = run_all(tiny_engine(speculation(3)), prompts, sampled)
    assert [each.tokens for each in run_all(engine, prompts, sampled)] == [each.tokens for each in expected]


def test_batches_that_ask_for_more_than_a_draw_run_elsewhere() -> None:
    graphed = GraphedCycle(tiny_engine(speculation(3)).executor.cycle, max_batch=4, steps=3, capture=False)  # type: ignore[attr-defined]
    row = Row(request=0, root_token=1, root_position=5, depth_limit=3, params=GREEDY, seed=0)
    batch = Batch(cycle=0, rows=(row,), speculation=speculation(3))
    assert graphed.covers(batch)
    assert graphed.covers(replace(batch, rows=(row, replace(row, params=replace(GREEDY, temperature=1.0, top_k=3)))))
    others = ({"presence_penalty": 1.0}, {"logit_bias": {1: 1.0}}, {"bad_word_ids": ((1,),)}, {"min_tokens": 2})
    for more in (*others, {"logprobs": 0}, {"repetition_penalty": 1.2}):
        asking = replace(row, params=replace(GREEDY, **more))
        assert not graphed.covers(replace(batch, rows=(row, asking)))


def test_a_context_that_outgrows_its_block_of_keys_goes_on() -> None:
    prompt = [[token % 120 for token in range(KEY_BLOCK - 20)]]
    params = SamplingParams(max_tokens=60)
    expected = run_all(tiny_engine(speculation(3)), prompt, params)
    engine = static(tiny_engine(speculation(3)))
    assert runs(run_all(engine, prompt, params)) == runs(expected)
    assert {shape.num_keys for shape in engine.executor.graphed._captured} == {KEY_BLOCK, 2 * KEY_BLOCK}


def test_windows_and_several_draft_layers_are_masked_alike() -> None:
    config = replace(TINY, windows=(16, None) * 4)
    found = []
    for make in (lambda engine: engine, static):
        target = tiny_target(config)
        engine = tiny_engine(speculation(3), target=target, draft=tiny_draft(target, num_layers=2))
        found.append(runs(run_all(make(engine), PROMPTS, GREEDY)))
    assert found[0] == found[1]


def test_a_decreed_accept_length_is_kept() -> None:
    engine = static(tiny_engine(speculation(3)))
    engine.executor.cycle.synthetic_accept_length = 2.5
    answers = run_all(engine, PROMPTS, SamplingParams(max_tokens=120))
    cycles = sum(each.statistics.cycles for each in answers)
    assert sum(each.statistics.emitted for each in answers) / cycles == pytest.approx(2.5, abs=0.15)


def test_spare_places_hold_the_same_on_all_ranks() -> None:
    engine = static(tiny_engine(speculation(2)))
    run_all(engine, PROMPTS[:3], GREEDY)
    for captured in engine.executor.graphed._captured.values():
        statics = captured.statics
        spare = statics.taken_S == 0
        assert torch.equal(statics.nodes[0][spare], torch.zeros_like(statics.nodes[0][spare]))


def test_a_batch_is_captured_in_the_smallest_shape_that_holds_it() -> None:
    row = Row(request=0, root_token=1, root_position=KEY_BLOCK - 4, depth_limit=3, params=GREEDY, seed=0)
    for steps, num_keys in ((3, KEY_BLOCK), (4, 2 * KEY_BLOCK)):
        batch = Batch(cycle=0, rows=(row,) * 3, speculation=speculation(steps))
        shape = shape_of(batch, sizes=(1, 2, 4, 8))
        assert (shape.num_places, shape.num_keys, shape.num_rows) == (4, num_keys, steps + 1)


def test_batches_of_the_sizes_asked_for_are_captured_and_larger_ones_run_as_ever() -> None:
    engine, plain = tiny_engine(speculation(3), max_batch=6), tiny_engine(speculation(3), max_batch=6)
    worker = engine.executor
    worker.graphed = GraphedCycle(worker.cycle, max_batch=6, steps=3, sizes=(1, 3), capture=False)
    assert runs(run_all(engine, PROMPTS, GREEDY)) == runs(run_all(plain, PROMPTS, GREEDY))
    places = {each.shape.num_places for each in worker.graphed.captures}
    assert places, "some requests end before others"
    assert places <= {1, 3}


def test_nothing_keeps_a_dropped_cycle_alive() -> None:
    """Its pools and graphs are large, and go before the next ones come."""
    engine = static(tiny_engine(speculation(2)))
    run_all(engine, PROMPTS[:1], GREEDY)
    gone = weakref.ref(engine.executor.graphed)
    gc.disable()
    try:
        engine.executor.graphed = None
        assert gone() is None
    finally:
        gc.enable()


def test_what_was_captured_is_told_and_the_shape_that_ran_longest_ago_makes_room() -> None:
    engine = static(tiny_engine(speculation(3)))
    graphed = engine.executor.graphed
    graphed.most_shapes = 2
    expected = run_in_turns(tiny_engine(speculation(3)), (3, 2, 3, 1, 2))
    assert run_in_turns(engine, (3, 2, 3, 1, 2)) == expected
    assert len(graphed._captured) == 2
    told = [str(each.shape) for each in graphed.captures]
    assert told[0] == "4 x 3x1x3, 128 keys, greedy"
    assert len(told) > len(set(told)), "one came back after it had made room"
    assert all(each.seconds > 0 for each in graphed.captures)


@pytest.mark.parametrize(("steps", "with_draft"), [(3, True), (0, True), (0, False)])
def test_cycles_are_launched_before_the_last_one_is_read(
    steps: int, with_draft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests of 60 tokens, then one of them alone: a batch is loaded where it changes, or needs more keys."""
    engine, loaded, read = tiny_engine(speculation(steps)), [], []
    if not with_draft:
        cycle = engine.executor.cycle
        cycle.drafter, cycle.seat = None, replace(cycle.seat, drafts=False)
    graphed = static(engine).executor.graphed
    launch, outcome = graphed._launch, Flight.outcome
    monkeypatch.setattr(graphed, "_launch", lambda *given: loaded.append(graphed.ahead) or launch(*given))
    monkeypatch.setattr(Flight, "outcome", lambda flight: read.append(graphed.ahead is not None) or outcome(flight))
    answers = run_all(engine, PROMPTS[:2], SamplingParams(max_tokens=60))
    assert sum(read) > 0.8 * len(read)
    assert len(loaded) < 0.2 * len(read)
    expected = run_all(tiny_engine(speculation(steps)), PROMPTS[:2], SamplingParams(max_tokens=60))
    assert [each.tokens for each in answers] == [each.tokens for each in expected]
