"""What the Python door says of its engine."""

from pathlib import Path

from slipstream import LLM, SamplingParams
from tests.unit.cli.world import PROMPTS, make_world


def test_an_engine_counts_its_cycles_its_drift_and_its_cache(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    llm = LLM(world.model, draft=world.draft, steps=2)
    fresh = llm.statistics
    assert (fresh.cycles, fresh.acceptance_drift, fresh.accept_length_recent) == (0, None, 0.0)
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    found = llm.generate([*PROMPTS, "the lazy dog " * 8], params)
    llm.generate("the lazy dog " * 8 + "sleeps", params)
    now = llm.statistics
    assert now.cycles == llm.engine.num_cycles >= max(len(each.runs) for each in found)
    assert now.accept_length_first == now.accept_length_recent > 1
    assert now.acceptance_drift is None
    assert not now.drifted
    assert now.drift_line == str(llm.engine.gauge)
    assert now.cache.hits == 1
    assert now.cache.hit_tokens > 0 == now.pinned_tokens
