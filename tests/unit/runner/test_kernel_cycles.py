"""Whole engines by our kernels, under Triton's interpreter: what a GPU runs, but for the capture."""

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import tests.tiny_engine
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Engine
from slipstream.kernels.plans import workspace
from slipstream.layers.kernel_products import KernelProducts
from slipstream.runner import worker
from slipstream.runner.graphs import GraphedCycle
from slipstream.runner.statics import Statics
from tests.tiny_engine import CPU, MINUTE, TINY, run_all, some_prompts, tiny_draft, tiny_engine, tiny_target
from tests.unit.runner.test_graphs import static

SMALL, PROMPTS = replace(MINUTE, vocab_size=TINY.vocab_size), some_prompts(3)
GREEDY = SamplingParams(max_tokens=8)
SAMPLED = SamplingParams(max_tokens=8, temperature=0.8, seed=4)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the kernels themselves")


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    products = KernelProducts(space=workspace(CPU, num_floats=1 << 16), plans={}, pdl=False)
    monkeypatch.setattr(worker, "products_for", lambda like: products)
    monkeypatch.setattr(tests.tiny_engine, "pack_linears", lambda model: model)  # kernels read weights as they are


def engine(shape: Speculation) -> Engine:
    target = tiny_target(SMALL)
    draft = tiny_draft(target, draft_vocab_size=40, captures=(0, 1, 2))
    return tiny_engine(shape, target=target, draft=draft, max_batch=2)


def counted(kind: type, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each call of a method from here on."""
    calls, does = [], getattr(kind, name)

    def count(self: Any, *args: Any) -> Any:
        calls.append(name)
        return does(self, *args)

    monkeypatch.setattr(kind, name, count)
    return calls


@pytest.mark.usefixtures("by_kernels")
@pytest.mark.parametrize(
    ("shape", "params"),
    [(speculation(0), GREEDY), (speculation(3), SAMPLED), (speculation(2, 2, 4), GREEDY)],
    ids=["plain", "chain", "tree"],
)
def test_cycles_that_are_launched_ahead_emit_what_cycles_one_by_one_do(
    shape: Speculation, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More requests than places, so that they change hands while a cycle is on its way."""
    expected = run_all(engine(shape), PROMPTS, params)
    launched, loaded = counted(GraphedCycle, "_fly", monkeypatch), counted(Statics, "load", monkeypatch)
    found = run_all(static(engine(shape)), PROMPTS, params)
    assert [(each.tokens, each.runs) for each in found] == [(each.tokens, each.runs) for each in expected]
    assert len(launched) > len(loaded) > 1, "some were launched ahead"
