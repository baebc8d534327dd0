"""Tokens with speculation equal those without: greedy and sampled, chains and trees, alone and in company."""

import pytest

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.request import Request
from tests.tiny_engine import NoStops, run_all, some_prompts, tiny_engine

SHAPES = [
    *[speculation(steps) for steps in (1, 2, 4, 8)],
    speculation(4, 4, 12),
    speculation(3, 8, 24),
    speculation(8, 2, 16),
    speculation(1, 5, 5),
]
PARAMS = [
    SamplingParams(max_tokens=40),
    SamplingParams(max_tokens=40, temperature=0.5, seed=7),
    SamplingParams(max_tokens=40, temperature=1.0, top_p=0.9, seed=8),
    SamplingParams(max_tokens=40, temperature=1.0, top_k=9, min_p=0.02, seed=9),
]
PROMPTS = some_prompts(6)
NAMES = ["greedy", "t05", "topp", "topk-minp"]


@pytest.fixture(scope="module")
def plain() -> dict[SamplingParams, list[tuple[int, ...]]]:
    """Plain decoding's tokens, one prompt at a time."""
    engine = tiny_engine(speculation(0), max_batch=1)
    return {params: [each.tokens for each in run_all(engine, PROMPTS, params)] for params in PARAMS}


@pytest.mark.parametrize("params", PARAMS, ids=NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tokens_equal_plain_decoding(
    plain: dict[SamplingParams, list[tuple[int, ...]]], shape: Speculation, params: SamplingParams
) -> None:
    drafted = run_all(tiny_engine(shape), PROMPTS, params)
    assert [each.tokens for each in drafted] == plain[params]
    assert sum(each.statistics.accepted for each in drafted) > 0
    for each in drafted:
        assert each.statistics.emitted == len(each.tokens) - 1
        assert each.runs == () or sum(each.runs) == each.statistics.emitted


def test_requests_that_come_and_go_get_the_tokens_they_get_alone(
    plain: dict[SamplingParams, list[tuple[int, ...]]],
) -> None:
    drafted = run_all(tiny_engine(speculation(3, 2, 6), max_batch=3), PROMPTS, PARAMS[1])
    assert [each.tokens for each in drafted] == plain[PARAMS[1]]


def test_a_draft_that_was_off_for_a_while_is_not_cold(plain: dict[SamplingParams, list[tuple[int, ...]]]) -> None:
    """With a ring of 4, plain steps extend now and then; afterwards acceptance is what it is without the pause."""
    steady = tiny_engine(speculation(3))
    paused = tiny_engine(speculation(3), feature_ring=4)
    for engine, shapes in ((steady, (3, 3)), (paused, (0, 3))):
        engine.speculation = speculation(shapes[0])
        add_all(engine)
        while min(len(state.tokens) for state in engine.running.values()) < 16 if engine.running else True:
            engine.step()
        engine.speculation = speculation(shapes[1])
    assert draft_keys(paused) == draft_keys(steady)


def add_all(engine: Engine) -> None:
    request = Request(id=0, prompt=tuple(PROMPTS[0]), params=SamplingParams(max_tokens=60), seed=0)
    engine.add(request, Ending(stop_ids=(), matcher=NoStops()))


def draft_keys(engine: Engine) -> list[list[float]]:
    """The draft's committed keys of the first 14 answered positions, after one more cycle."""
    engine.step()
    drafter = engine.executor.drafter
    assert drafter is not None
    base = engine.running[0].pages[0] * 16
    stop = base + len(PROMPTS[0]) + 14
    keys = drafter.pool.keys[0, base + 1 : stop].flatten(1)
    return [[round(value, 4) for value in row] for row in keys.tolist()]
