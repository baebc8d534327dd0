"""Pinned prompts beside requests: they stay, and nobody waits for ever for what they keep."""

from random import Random

import pytest

from slipstream.config.engine import EngineConfig
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import speculation
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.output import Answer
from slipstream.flow.request import Request
from slipstream.schedule.scheduler import most_entries
from slipstream.telemetry.clock import Clock
from tests.fake_executor import FakeExecutor
from tests.tiny_engine import NoStops
from tests.to_the_end import alone, put
from tests.to_the_end import finish as run_to_the_end

SYSTEM, OTHER = tuple(range(16)), tuple(range(40, 52))


def fake_engine(**sizes: int) -> Engine:
    config = EngineConfig(**{"speculation": speculation(3), "max_len": 256, "page_size": 4, **sizes})
    return Engine(config, FakeExecutor(config), clock=Clock())


def ask(number: int, prompt: tuple[int, ...], *, max_tokens: int = 20) -> Request:
    return Request(id=number, prompt=prompt, params=SamplingParams(max_tokens=max_tokens), seed=0)


def finish(engine: Engine, *requests: Request) -> dict[int, Answer]:
    put(engine, *requests)
    return run_to_the_end(engine, most_steps=3000)


def pinned_engine(**sizes: int) -> Engine:
    engine = fake_engine(max_pinned_pages=7, **sizes)
    finish(engine, ask(0, SYSTEM, max_tokens=1), ask(1, OTHER, max_tokens=1))
    assert engine.pages.pin(SYSTEM) == 16
    assert engine.pages.pin(OTHER) == 12
    return engine


def test_a_request_that_does_not_fit_beside_the_pins_is_refused_at_once() -> None:
    engine = fake_engine(num_pages=24, max_pinned_pages=7)
    fits, too_long = ask(0, (1, 2, 3), max_tokens=57), ask(1, (1, 2, 3), max_tokens=58)
    assert most_entries(fits, engine.config) == 16 * 4
    reason = "need 65 KV entries but the cache holds 64 beside the 28 that pinned prompts may keep; lower max_tokens"
    with pytest.raises(ValueError, match=reason):
        engine.add(too_long, Ending(stop_ids=(), matcher=NoStops()))
    assert not engine.busy
    assert finish(engine, fits)[0].tokens == alone(fits)


def test_the_longest_request_that_is_taken_ends_though_all_that_may_be_is_pinned() -> None:
    engine = pinned_engine(num_pages=24)
    assert engine.pages.num_pinned == engine.config.max_pinned_pages
    longest = [ask(10, (1, 2, 3), max_tokens=57), ask(11, (4, 5), max_tokens=58), ask(12, (*SYSTEM, 9), max_tokens=43)]
    answers = finish(engine, *longest)
    assert all(answers[request.id].tokens == alone(request) for request in longest)
    assert answers[12].num_cached == 16
    assert engine.pages.num_pinned == 7


@pytest.mark.parametrize("seed", range(4))
def test_in_crowded_hours_pins_stay_and_everybody_ends(seed: int) -> None:
    random, engine = Random(seed), pinned_engine(num_pages=28, max_batch=5, prefill_chunk=8)
    requests = []
    for number in range(10, 50):
        head = random.choice(((), SYSTEM, OTHER, SYSTEM[:9]))
        prompt = (*head, *(random.randrange(60) for _ in range(random.randint(1, 12))))
        requests.append(ask(number, prompt, max_tokens=random.randint(1, 44)))
    answers = finish(engine, *requests)
    assert all(answers[request.id].tokens == alone(request) for request in requests)
    for request in requests:
        if request.prompt[:16] == SYSTEM and len(request.prompt) > 16:
            assert answers[request.id].num_cached >= 16
    assert engine.pages.num_free + engine.pages.num_pinned == 27
    for prompt in engine.pages.pinned:
        engine.pages.unpin(prompt)
    assert engine.pages.num_free == 27
    engine.pages.check([])


def test_pins_without_a_prefix_cache_are_refused() -> None:
    with pytest.raises(ValueError, match="pinned prompts live in the prefix cache, and it is off"):
        fake_engine(max_pinned_pages=2, prefix_cache=False)
