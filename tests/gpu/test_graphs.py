"""Captured cycles on one CUDA device: the tokens of uncaptured ones, through requests that come, go and sample."""

import pytest
import torch

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Engine
from tests.gpu.test_cuda import on_cuda
from tests.tiny_engine import run_all, some_prompts, tiny_draft, tiny_engine, tiny_target

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

GREEDY = SamplingParams(max_tokens=40)
PROMPTS = some_prompts(6)


def engine(steps: int, *, graphs: bool, max_batch: int = 8, ring: int = 32) -> Engine:
    target = tiny_target()
    draft = on_cuda(tiny_draft(target))
    found = tiny_engine(
        speculation(steps), target=target.to("cuda"), draft=draft, max_batch=max_batch, feature_ring=ring
    )
    assert found.executor.graphed is not None, "graphs are on by default"
    if not graphs:
        found.executor.graphed = None
    return found


@pytest.mark.parametrize("steps", range(5))
def test_captured_tokens_equal_uncaptured_ones(steps: int) -> None:
    expected = run_all(engine(steps, graphs=False), PROMPTS, GREEDY)
    found = run_all(engine(steps, graphs=True), PROMPTS, GREEDY)
    assert [(each.tokens, each.runs) for each in found] == [(each.tokens, each.runs) for each in expected]


def test_places_change_hands_and_an_engine_is_used_again() -> None:
    expected = [each.tokens for each in run_all(engine(3, graphs=False, max_batch=3), PROMPTS, GREEDY)]
    captured = engine(3, graphs=True, max_batch=3)
    for _ in range(2):
        assert [each.tokens for each in run_all(captured, PROMPTS, GREEDY)] == expected
        captured.executor.drop_graphs()


SAMPLED = SamplingParams(max_tokens=30, temperature=0.8, seed=4)
FILTERED = SamplingParams(max_tokens=30, temperature=0.9, top_k=20, top_p=0.9, seed=5)
PENALISED = SamplingParams(max_tokens=30, repetition_penalty=1.1)


def tree_engine(shape: Speculation, *, graphs: bool, max_batch: int = 8) -> Engine:
    target = tiny_target()
    found = tiny_engine(shape, target=target.to("cuda"), draft=on_cuda(tiny_draft(target)), max_batch=max_batch)
    if not graphs:
        found.executor.graphed = None
    return found


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, FILTERED], ids=["greedy", "sampled", "filtered"])
@pytest.mark.parametrize("shape", [speculation(3), speculation(3, 4, 12)], ids=str)
def test_chains_and_trees_drawn_or_greedy_are_captured(shape: Speculation, params: SamplingParams) -> None:
    expected = run_all(tree_engine(shape, graphs=False), PROMPTS, params)
    captured = tree_engine(shape, graphs=True)
    found = run_all(captured, PROMPTS, params)
    assert [(each.tokens, each.runs) for each in found] == [(each.tokens, each.runs) for each in expected]
    assert captured.executor.graphed._captured, "it ran there"


@pytest.mark.parametrize(
    "params", [GREEDY, SAMPLED, FILTERED, PENALISED], ids=["greedy", "sampled", "filtered", "more"]
)
def test_every_shape_and_batch_gives_the_tokens_of_plain_decoding_alone(params: SamplingParams) -> None:
    expected = [each.tokens for each in run_all(tree_engine(speculation(0), graphs=True, max_batch=1), PROMPTS, params)]
    for shape in (speculation(1), speculation(3), speculation(5), speculation(4, 4, 12)):
        for max_batch in (1, 4, 6):
            for graphs in (True, False):
                engine = tree_engine(shape, graphs=graphs, max_batch=max_batch)
                assert [each.tokens for each in run_all(engine, PROMPTS, params)] == expected


def test_processed_answers_run_uncaptured_in_between() -> None:
    plain, captured = engine(3, graphs=False), engine(3, graphs=True)
    for params in (GREEDY, PENALISED, SAMPLED, GREEDY):
        expected = [each.tokens for each in run_all(plain, PROMPTS, params)]
        assert [each.tokens for each in run_all(captured, PROMPTS, params)] == expected


def test_plain_cycles_with_a_small_ring_keep_the_draft_warm() -> None:
    found = []
    for graphs in (False, True):
        each = engine(3, graphs=graphs, ring=4)
        each.speculation = speculation(0)
        found.append([answer.tokens for answer in run_all(each, PROMPTS[:3], GREEDY)])
        each.speculation = speculation(3)
        found.append([answer.tokens for answer in run_all(each, PROMPTS[:3], GREEDY)])
    assert found[0] == found[1] == found[2] == found[3]
