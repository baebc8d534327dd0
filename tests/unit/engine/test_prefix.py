"""Prompts that begin alike: what is found in the cache changes no token, no draft entry and no acceptance."""

import pytest
import torch

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Engine
from tests.tiny_engine import run_all, tiny_engine

PARAMS = [SamplingParams(max_tokens=24), SamplingParams(max_tokens=24, temperature=0.9, seed=5)]
SHAPES = [speculation(0), speculation(3), speculation(3, 3, 9)]


def prompts() -> list[list[int]]:
    """Full hits up to a page's end, partial ones, one token more than a page, and none."""
    head = [(7 * place) % 113 for place in range(80)]
    return [head, [*head, 5], head[:48], head[:49], head[:40] + [9] * 30, [3] * 20, head[:16], [*head[:17], 1]]


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_hits_give_the_tokens_and_the_acceptance_of_a_cold_run(shape: Speculation, params: SamplingParams) -> None:
    for prompt in prompts()[1:]:
        engine = tiny_engine(shape, max_batch=1)
        cold = run_all(tiny_engine(shape, max_batch=1), [prompt], params)[0]
        run_all(engine, [prompts()[0]], params)
        warm = run_all(engine, [prompt], params)[0]
        again = run_all(engine, [prompt], params)[0]
        assert warm.tokens == cold.tokens == again.tokens
        assert warm.runs == cold.runs == again.runs
        assert again.num_cached == (len(prompt) - 1) // 16 * 16
    assert engine.pages.statistics.hits > 0


def test_a_hit_leaves_the_draft_the_entries_of_a_cold_run() -> None:
    prompt, other = prompts()[4], prompts()[0]
    cold, warm = tiny_engine(speculation(3), max_batch=1), tiny_engine(speculation(3), max_batch=1)
    run_all(warm, [other], PARAMS[0])
    found = []
    for engine in (cold, warm):
        run_all(engine, [], PARAMS[0])
        add(engine, prompt)
        engine.prefill_all()
        state = next(iter(engine.running.values()))
        slots = torch.tensor([page * 16 + place for page in state.pages for place in range(16)])[1 : len(prompt)]
        drafter = engine.executor.drafter  # type: ignore[attr-defined]
        found.append([drafter.pool.keys[:, slots], drafter.pool.values[:, slots], engine.executor.pool.keys[:, slots]])
        assert state.num_cached == (32 if engine is warm else 0)
    for left, right in zip(*found, strict=True):
        assert torch.equal(left, right)


def add(engine: Engine, prompt: list[int]) -> None:
    from slipstream.engine.engine import Ending
    from slipstream.flow.request import Request
    from tests.tiny_engine import NoStops

    request = Request(id=999, prompt=tuple(prompt), params=PARAMS[0], seed=0)
    engine.add(request, Ending(stop_ids=(), matcher=NoStops()))
