"""Models without weights: random ones of their configs' shapes, for timing."""

import shutil
from pathlib import Path

import pytest

from slipstream import LLM, SamplingParams
from slipstream.serve.report import describe
from tests.unit.cli.world import World

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture
def bare(http_world: World, tmp_path: Path) -> World:
    """The same folders without their weights."""
    copied = {}
    for name in ("model", "draft"):
        copied[name] = shutil.copytree(
            getattr(http_world, name), tmp_path / name, ignore=shutil.ignore_patterns("*.safetensors*")
        )
    return World(model=str(copied["model"]), draft=str(copied["draft"]), prompts=http_world.prompts)


def test_models_without_weights_run_with_random_ones(bare: World) -> None:
    llm = LLM(bare.model, draft=bare.draft, steps=3, device="cpu", dummy_weights=True, synthetic_accept_length=2.0)
    (found,) = llm.generate("the quick brown fox", PARAMS)
    assert len(found.token_ids) == 12
    assert found.statistics.proposed > 0
    assert describe(llm)["weights"] == "dummy"
    assert describe(llm)["speculation"]["draft"] == "draft"
    llm.close()


def test_the_shape_of_a_cycle_and_the_draft_may_change_beside_them(bare: World, tmp_path: Path) -> None:
    llm = LLM(bare.model, draft=bare.draft, steps=3, device="cpu", dummy_weights=True)
    llm.reconfigure(steps=1)
    assert llm.speculation.steps == 1
    other = shutil.copytree(bare.draft, tmp_path / "other")
    llm.reconfigure(draft=str(other))
    assert llm.draft_path == other
    (found,) = llm.generate("the quick brown fox", PARAMS)
    assert found.statistics.proposed > 0
    llm.close()


def test_without_the_option_missing_weights_are_refused(bare: World) -> None:
    with pytest.raises(ValueError, match="safetensors"):
        LLM(bare.model, draft=None, device="cpu")
