"""Who makes room, who waits, and that no token changes for it: on a tiny model where tokens matter, else on a fake."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest

from slipstream.cache.pages import Pages
from slipstream.cache.table import PageTable
from slipstream.config.engine import EngineConfig
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Engine
from slipstream.flow.output import Answer, FinishReason
from slipstream.flow.request import Request
from slipstream.schedule import scheduler
from slipstream.telemetry.clock import Clock, ManualClock
from tests.fake_executor import FakeExecutor
from tests.tiny_engine import some_prompts, tiny_engine
from tests.to_the_end import alone, finish, put

SHAPES = [speculation(0), speculation(3), speculation(3, 2, 6)]
PARAMS = [SamplingParams(max_tokens=40), SamplingParams(max_tokens=40, temperature=0.9, top_p=0.95)]
GREEDY = SamplingParams(max_tokens=30)


def fake_engine(shape: Speculation | None = None, **sizes: int) -> Engine:
    config = EngineConfig(**{"speculation": shape or speculation(3), "max_len": 256, "page_size": 4, **sizes})
    return Engine(config, FakeExecutor(config), clock=Clock())


def ask(number: int, *, prompt: Sequence[int] = (), params: SamplingParams = GREEDY, **more: int | None) -> Request:
    prompt = tuple(prompt or ((7 * number + place) % 60 for place in range(9)))
    return Request(id=number, prompt=prompt, params=params, seed=number, **more)


@pytest.fixture
def little_headroom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests get few pages beyond what they need, so that they have to grow often."""
    monkeypatch.setattr(scheduler, "HEADROOM", 8)


# ------------------------------------------------------------------ tokens


@pytest.mark.usefixtures("little_headroom")
@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_requests_that_displace_each_other_get_the_tokens_they_get_alone(
    shape: Speculation, params: SamplingParams
) -> None:
    requests = [ask(number, prompt=prompt, params=params) for number, prompt in enumerate(some_prompts(5))]
    crowded = tiny_engine(shape, num_pages=36, page_size=4, prefill_chunk=32)
    put(crowded, *requests)
    found = finish(crowded)
    assert sum(answer.preemptions for answer in found.values()) > 1
    roomy = tiny_engine(speculation(0), max_batch=1)
    for request in requests:
        put(roomy, request)
        assert found[request.id].tokens == finish(roomy)[request.id].tokens


@pytest.mark.parametrize("steps", [0, 1, 3, None])
def test_requests_of_different_steps_share_a_batch_and_get_the_tokens_they_get_alone(steps: int | None) -> None:
    prompts = some_prompts(4)
    for params in PARAMS:
        requests = [
            ask(number, prompt=prompts[number], params=params, steps=each)
            for number, each in enumerate((0, 1, 3, None))
        ]
        chosen = next(request for request in requests if request.steps == steps)
        together, lonely = tiny_engine(speculation(3)), tiny_engine(speculation(3))
        put(together, *requests)
        put(lonely, chosen)
        found, expected = finish(together)[chosen.id], finish(lonely)[chosen.id]
        assert (found.tokens, found.runs) == (expected.tokens, expected.runs)
        assert max(found.runs) <= 1 + (3 if steps is None else steps)
        assert (found.statistics.proposed == 0) == (steps == 0)


def test_beyond_the_drafts_length_nothing_is_drafted_and_every_such_cycle_is_counted() -> None:
    request = ask(0, prompt=range(20))
    engine = tiny_engine(speculation(3), draft_max_len=34)
    put(engine, request, ask(1, prompt=range(30, 35)))
    answers = finish(engine)
    found = answers[0]
    free = tiny_engine(speculation(3))
    put(free, request)
    without = finish(free)[0]
    assert found.tokens == without.tokens
    assert without.statistics.not_drafted == 0
    num_tokens, beyond = 21, 0
    for kept in found.runs:
        assert kept == 1 or num_tokens + 3 <= 34
        beyond += num_tokens + 3 > 34
        num_tokens += kept
    assert found.statistics.not_drafted == beyond > 10
    assert sum(found.runs) == found.statistics.emitted == 29


def test_a_request_without_speculation_is_not_counted_as_beyond_the_draft() -> None:
    engine = tiny_engine(speculation(3), draft_max_len=10)
    put(engine, ask(0, prompt=range(20), steps=0))
    assert finish(engine)[0].statistics.not_drafted == 0


# ------------------------------------------------------------------ who goes first


def test_a_more_important_request_displaces_a_less_important_one_from_a_full_batch() -> None:
    engine = fake_engine(max_batch=2)
    put(engine, ask(0, priority=1), ask(1, priority=1))
    engine.step()
    put(engine, ask(2, priority=0))
    engine.step()
    assert set(engine.running) == {0, 2}
    answers = finish(engine)
    assert [answers[each].preemptions for each in range(3)] == [0, 1, 0]
    assert all(answers[each].tokens == alone(ask(each)) for each in range(3))


def test_a_more_important_request_displaces_a_less_important_one_when_pages_are_full() -> None:
    engine = fake_engine(num_pages=24)
    big = SamplingParams(max_tokens=60)
    put(engine, ask(0, params=big, priority=3), ask(1, params=big, priority=2))
    engine.step()
    put(engine, ask(2, params=big, prompt=range(20), priority=1))
    engine.step()
    assert 2 in engine.running
    assert 0 not in engine.running
    answers = finish(engine)
    assert answers[0].preemptions > 0
    assert answers[2].preemptions == 0
    assert next(iter(answers)) == 2


def test_among_equals_nobody_is_displaced_for_one_that_comes_later() -> None:
    engine = fake_engine(max_batch=2)
    put(engine, ask(0), ask(1))
    engine.step()
    put(engine, *(ask(each) for each in range(2, 8)))
    answers = finish(engine)
    assert all(answer.preemptions == 0 for answer in answers.values())


def test_within_a_priority_requests_enter_in_the_order_in_which_they_came() -> None:
    engine = fake_engine(max_batch=2)
    put(engine, *(ask(each, priority=each % 2) for each in range(10)))
    entered: list[int] = []
    while engine.busy:
        engine.step()
        entered += [each for each in engine.running if each not in entered]
    assert entered == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]


def test_a_preempted_request_comes_back_before_those_that_came_after_it() -> None:
    engine = fake_engine(max_batch=2)
    put(engine, ask(0), ask(1, priority=1), ask(2, priority=1), ask(3, priority=1))
    engine.step()
    put(engine, ask(4))
    engine.step()
    assert set(engine.running) == {0, 4}
    order: list[int] = []
    while engine.busy:
        engine.step()
        order += [each for each in engine.running if each not in (0, 4, *order)]
    assert order == [1, 2, 3]


def test_a_more_important_prompt_is_run_before_one_that_is_half_way_in() -> None:
    engine = fake_engine(prefill_chunk=8)
    put(engine, ask(0, prompt=range(50), priority=1))
    engine.step()
    put(engine, ask(1, prompt=range(30, 60), priority=0))
    while not engine.running[0].decoding:
        engine.step()
        assert engine.running[0].num_run == 8 or engine.running[1].decoding


# ------------------------------------------------------------------ leaving


@pytest.mark.parametrize("stage", ["waiting", "entering", "decoding", "preempted"])
def test_an_abort_frees_what_a_request_holds_at_every_stage(stage: str) -> None:
    engine = fake_engine(max_batch=2, num_pages=60, prefill_chunk=8)
    put(engine, ask(0, prompt=range(40), priority=1), ask(1))
    engine.step()
    assert not engine.running[0].decoding
    if stage == "waiting":
        put(engine, ask(2, priority=1))
    if stage == "decoding":
        while not engine.running[0].decoding:
            engine.step()
    if stage == "preempted":
        put(engine, ask(2))
        engine.step()
        assert engine._waiting[0].preemptions == 1
    victim = 2 if stage == "waiting" else 0
    engine.abort(victim)
    engine.abort(victim)
    engine.pages.check([state.pages for state in engine.running.values()])
    assert victim not in engine.executor.held
    answers = finish(engine)
    assert victim not in answers
    assert answers[1].tokens == alone(ask(1))
    assert engine.pages.num_free == 59


def test_an_abort_between_any_two_steps_leaves_the_others_tokens_alone() -> None:
    for moment in range(30):
        engine = fake_engine(max_batch=3, num_pages=28, prefill_chunk=8)
        put(engine, *(ask(each) for each in range(4)))
        answers: dict[int, Answer] = {}
        for step in range(500):
            if step == moment:
                engine.abort(1)
            answers |= {news.request: news.answer for news in engine.step() if news.answer is not None}
            engine.pages.check([state.pages for state in engine.running.values()])
            if not engine.busy and step > moment:
                break
        assert engine.pages.num_free == 27
        assert {0, 2, 3} <= answers.keys()
        assert all(answer.tokens == alone(ask(each)) for each, answer in answers.items())


# ------------------------------------------------------------------ no starvation


@pytest.mark.usefixtures("little_headroom")
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_requests_that_cannot_both_fit_end_one_after_the_other(shape: Speculation, prefix_cache: bool) -> None:
    params = SamplingParams(max_tokens=100)
    engine = fake_engine(shape, num_pages=36, prefill_chunk=16, prefix_cache=prefix_cache)
    requests = [ask(number, prompt=range(10 * number, 10 * number + 20), params=params) for number in range(2)]
    put(engine, *requests)
    answers: dict[int, Answer] = {}
    num_steps = 0
    while engine.busy:
        answers |= {news.request: news.answer for news in engine.step() if news.answer is not None}
        num_steps += 1
        assert num_steps < 300
    assert [answers[each].tokens for each in (0, 1)] == [alone(request) for request in requests]
    assert list(answers) == [0, 1]
    assert answers[0].preemptions == 0
    assert 1 <= answers[1].preemptions <= 3


@pytest.mark.usefixtures("little_headroom")
def test_many_requests_that_cannot_fit_together_all_end() -> None:
    params = SamplingParams(max_tokens=80)
    engine = fake_engine(num_pages=30, prefill_chunk=16, max_batch=8)
    requests = [ask(number, params=params) for number in range(12)]
    put(engine, *requests)
    answers = finish(engine)
    assert list(answers) == sorted(answers)
    assert all(answers[request.id].tokens == alone(request) for request in requests)
    assert 0 < sum(answer.preemptions for answer in answers.values()) <= 4 * len(requests)


def test_the_most_important_request_is_never_displaced() -> None:
    params = SamplingParams(max_tokens=80)
    engine = fake_engine(num_pages=30, max_batch=4)
    put(engine, *(ask(number, params=params, priority=5) for number in range(4)))
    for _ in range(5):
        engine.step()
    put(engine, ask(9, params=params, priority=-1))
    answers = finish(engine)
    assert answers[9].preemptions == 0
    assert next(iter(answers)) == 9
    assert all(answer.finish_reason is FinishReason.LENGTH for answer in answers.values())


def test_a_request_keeps_its_pages_in_order_when_it_grows() -> None:
    engine = fake_engine(num_pages=200)
    put(engine, ask(0, params=SamplingParams(max_tokens=200)))
    sizes: list[int] = []
    while engine.busy:
        sizes += [len(state.pages) for state in engine.running.values()]
        engine.step()
    assert all(before <= after for before, after in pairwise(sizes))


def test_pages_that_outlive_their_requests_are_noticed_at_once() -> None:
    engine = fake_engine()
    put(engine, ask(0))
    engine.step()
    assert engine.pages.grow((), 4) is not None  # nobody's
    with pytest.raises(AssertionError, match="requests are gone but their pages are not"):
        finish_unchecked(engine)


def finish_unchecked(engine: Engine) -> None:
    while engine.busy:
        engine.step()


class SlowPages(PageTable):
    """A table so large that a look at all of it takes a second."""

    clock = ManualClock()
    num_checks = 0

    def check(self, held: Iterable[Sequence[int]] | None = None) -> None:
        super().check(held)
        self.num_checks += 1
        self.clock.advance(1.0)


def test_a_large_table_is_looked_at_for_a_hundredth_of_the_time() -> None:
    config = EngineConfig(speculation=speculation(3), max_len=256)
    clock = SlowPages.clock
    engine = Engine(config, FakeExecutor(config), clock=clock)
    engine.pages = pages = SlowPages(Pages(config.num_pages, config.page_size))
    for number in range(40):
        put(engine, ask(number))
        finish_unchecked(engine)
        clock.advance(10.0)
    assert pages.num_checks == 4
