"""Simulated days: thousands of requests that come and go, and each gets what it would have got alone."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.config.engine import EngineConfig
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Engine
from slipstream.flow.output import Answer
from slipstream.schedule import scheduler
from slipstream.telemetry.clock import ManualClock
from tests.fake_executor import VOCAB, FakeExecutor, answer_alone
from tests.simulated_day import (
    Day,
    PairStop,
    Visit,
    check_answer,
    check_end,
    num_reachable,
    random_visits,
    some_wish,
)
from tests.tiny_engine import MINUTE, tiny_draft, tiny_engine, tiny_target
from tests.tiny_grammar import CONFIG, grammars

BUSY = EngineConfig(
    speculation=speculation(3, 2, 6), max_len=400, max_batch=12, page_size=8, num_pages=44, prefill_chunk=32
)


def open_day(config: EngineConfig) -> tuple[Day, FakeExecutor]:
    clock = ManualClock()
    executor = FakeExecutor(config, clock=clock)
    return Day(Engine(config, executor, clock=clock), clock), executor


def check_answers(day: Day, visits: list[Visit]) -> None:
    """Every answer is the one that the request gets alone."""
    for visit in visits:
        answer = day.answers.get(visit.request.id)
        if answer is None:
            continue
        tokens, reason = answer_alone(
            visit.request,
            stop_ids=visit.stop_ids,
            matcher=PairStop(visit.stop_pair),
            max_len=day.engine.config.max_len,
        )
        assert (answer.tokens, answer.finish_reason) == (tokens, reason)
        check_answer(visit, answer, day.tokens[visit.request.id])


def test_a_day_of_5000_requests_loses_no_page_and_gives_every_answer() -> None:
    day, executor = open_day(BUSY)
    visits = random_visits(Random(1), 5000, BUSY, vocab_size=VOCAB, pause_s=0.12)
    day.run(visits, held=executor.held.keys())
    check_end(day, visits)
    check_answers(day, visits)
    assert len(day.answers) > 4000
    assert set(day.cancelled.values()) == {"waiting", "entering", "decoding", "preempted"}
    assert len(day.cancelled) > 400
    assert 150 < len(day.refused) < 350
    assert day.num_preemptions > 200
    assert day.engine.pages.statistics.hits > 500


def test_a_second_day_needs_no_more_memory_than_the_first() -> None:
    day, executor = open_day(BUSY)
    sizes = []
    for seed in range(3):
        first_id = 1000 * seed
        visits = random_visits(Random(seed), 300, BUSY, vocab_size=VOCAB, pause_s=0.06)
        now = day.clock.now()
        day.run([_shifted(visit, first_id, now) for visit in visits], held=executor.held.keys())
        day.engine.pages.clear()
        sizes.append(num_reachable(day.engine))
    assert max(sizes) - min(sizes) < 20


def _shifted(visit: Visit, first_id: int, now: float) -> Visit:
    request = replace(visit.request, id=first_id + visit.request.id)
    return replace(visit, request=request, arrival_s=now + visit.arrival_s)


@pytest.mark.parametrize("shape", [speculation(3), speculation(3, 2, 6)], ids=["chain", "tree"])
def test_a_day_against_a_model_gives_every_request_what_it_gets_alone(shape: Speculation) -> None:
    run_day(shape, 200)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_day_of_5000_requests_against_a_model_gives_each_what_it_gets_alone() -> None:
    run_day(speculation(3, 2, 6), 5000)


def run_day(shape: Speculation, num_visits: int) -> None:
    """Every wish of sampling, grammars among them, on a model of two layers."""
    config = replace(MINUTE, vocab_size=CONFIG.vocab_size, eos_ids=CONFIG.eos_ids)
    target = tiny_target(config)
    draft = tiny_draft(target, draft_vocab_size=240, captures=(1, 2))
    clock = ManualClock()
    common = {"target": target, "draft": draft, "max_len": 200, "open_grammars": grammars}
    engine = tiny_engine(shape, num_pages=34, page_size=8, prefill_chunk=24, clock=clock, **common)
    visits = random_visits(
        Random(2), num_visits, engine.config, vocab_size=config.vocab_size, pause_s=0.01, asks=some_wish
    )
    day = Day(engine, clock)
    day.run(visits, held=engine.executor._residents.keys())  # type: ignore[attr-defined]
    check_end(day, visits)
    assert day.num_preemptions > 20
    assert set(day.cancelled.values()) >= {"waiting", "entering", "decoding"}
    alone = tiny_engine(speculation(0), max_batch=1, prefix_cache=False, **common)
    for visit in visits:
        if visit.request.id in day.answers:
            answer = day.answers[visit.request.id]
            check_answer(visit, answer, day.tokens[visit.request.id])
            expected = answer_by(alone, visit)
            assert (answer.tokens, answer.finish_reason) == (expected.tokens, expected.finish_reason)


def answer_by(engine: Engine, visit: Visit) -> Answer:
    """What an engine answers to one request."""
    engine.add(visit.request, visit.ending)
    while True:
        for news in engine.step():
            if news.answer is not None:
                return news.answer


HEADROOMS = st.sampled_from([0, 5, 256])
SHAPES = [speculation(0), speculation(1), speculation(4), speculation(2, 2, 4), speculation(3, 3, 9)]


@st.composite
def crowded_hours(draw: st.DrawFn) -> tuple[EngineConfig, list[Visit]]:
    """An engine that is too small for what is asked of it."""
    shape, page_size = draw(st.sampled_from(SHAPES)), draw(st.sampled_from([1, 2, 4, 16]))
    capacity = draw(st.integers(40, 90))
    config = EngineConfig(
        speculation=shape,
        max_len=draw(st.integers(24, 120)),
        max_batch=draw(st.integers(1, 6)),
        page_size=page_size,
        num_pages=1 - (-capacity // page_size),
        prefill_chunk=draw(st.sampled_from([1, 3, 8, 64])),
        prefix_cache=draw(st.booleans()),
        draft_max_len=draw(st.sampled_from([None, 15, 30])),
    )
    count = draw(st.integers(1, 14))
    pause = draw(st.sampled_from([0.0001, 0.01, 0.1]))
    seed = draw(st.integers(0, 2**32))
    return config, random_visits(Random(seed), count, config, vocab_size=VOCAB, pause_s=pause)


def run_hour(hour: tuple[EngineConfig, list[Visit]], headroom: int) -> None:
    config, visits = hour
    day, executor = open_day(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "HEADROOM", headroom)
        day.run(visits, held=executor.held.keys())
    check_end(day, visits)
    check_answers(day, visits)


@given(crowded_hours(), HEADROOMS)
@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_in_a_crowded_hour_nothing_is_out_of_place(hour: tuple[EngineConfig, list[Visit]], headroom: int) -> None:
    run_hour(hour, headroom)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@given(crowded_hours(), HEADROOMS)
@settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_in_thousands_of_crowded_hours_nothing_is_out_of_place(
    hour: tuple[EngineConfig, list[Visit]], headroom: int
) -> None:
    run_hour(hour, headroom)
