"""Prompts that stay cached at the Python door."""

from collections.abc import Iterator

import pytest

from slipstream import LLM, SamplingParams
from tests.unit.cli.world import World, make_world

SYSTEM = [{"role": "system", "content": "You are brief. " * 6}]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)
FILLER = [[(7 * place + number) % 300 for place in range(200)] for number in range(4)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def llm(world: World) -> Iterator[LLM]:
    found = LLM(world.model, draft=world.draft, steps=2, max_batch=1, pinned_tokens=100, seed=3)
    yield found
    for prompt in found.engine.pages.pinned:
        found.engine.pages.unpin(prompt)
    found.engine.pages.check([])
    assert found.engine.pages.num_free == found.engine.config.num_pages - 1


def asked(text: str) -> list[dict[str, str]]:
    return [*SYSTEM, {"role": "user", "content": text}]


def test_a_pinned_system_prompt_is_found_after_all_else_was_evicted(llm: LLM) -> None:
    expected = llm.chat(asked("fox"), PARAMS)[0]
    num_pinned = llm.pin(SYSTEM)
    assert num_pinned == llm.statistics.pinned_tokens >= 16
    for text in FILLER:
        llm.generate([text], PARAMS)
    assert llm.statistics.cache.evicted_pages > 0
    again = llm.chat(asked("fox"), PARAMS)[0]
    assert again.num_cached_tokens >= num_pinned - 16
    assert (again.token_ids, again.runs) == (expected.token_ids, expected.runs)


def test_a_prompt_is_let_go_as_it_was_pinned(llm: LLM) -> None:
    for prompt in ("the lazy dog sleeps " * 6, FILLER[0][:40], SYSTEM):
        assert llm.pin(prompt) > 0
        llm.unpin(prompt)
        assert llm.statistics.pinned_tokens == 0
        with pytest.raises(ValueError, match="not pinned"):
            llm.unpin(prompt)


def test_pins_outlive_another_draft_and_a_longer_cycle(world: World, llm: LLM) -> None:
    num_pinned = llm.pin(SYSTEM)
    for steps, draft_tp in ((9, None), (None, 1)):
        before = llm.engine
        llm.reconfigure(steps=steps, draft=world.draft, draft_tp=draft_tp)
        assert llm.engine is not before
        assert llm.statistics.pinned_tokens == num_pinned
        assert llm.chat(asked("fox"), PARAMS)[0].num_cached_tokens >= num_pinned - 16


def test_a_pin_leaves_the_seeds_of_later_requests_alone(world: World) -> None:
    params = SamplingParams(max_tokens=2, temperature=1.0)
    seeds = []
    for pinned in (False, True):
        llm = LLM(world.model, draft=None, seed=9, pinned_tokens=100)
        if pinned:
            llm.pin(SYSTEM)
        seeds.append(llm.generate("fox", params)[0].seed)
    assert seeds[0] == seeds[1]


def test_what_cannot_be_pinned_is_refused_and_changes_nothing(world: World, llm: LLM) -> None:
    with pytest.raises(ValueError, match="pages of 16 are kept; pin a longer one"):
        llm.pin("fox")
    with pytest.raises(ValueError, match=r"but 112 may be pinned; raise pinned_tokens"):
        llm.pin(FILLER[0])
    llm.pin(FILLER[0][:90])
    with pytest.raises(ValueError, match=r"unpin another prompt or raise pinned_tokens"):
        llm.pin(FILLER[1][:60])
    with pytest.raises(ValueError, match="nothing may be pinned; load the model with pinned_tokens"):
        LLM(world.model, draft=None).pin(SYSTEM)
    with pytest.raises(ValueError, match="pinned_tokens is 0 or more, not -3"):
        LLM(world.model, draft=None, pinned_tokens=-3)
    with pytest.raises(ValueError, match="the prefix cache, and it is off"):
        LLM(world.model, draft=None, pinned_tokens=64, prefix_cache=False)
    assert not llm.engine.busy


def test_the_whole_context_is_served_beside_the_pins(world: World) -> None:
    llm = LLM(world.model, draft=None, max_batch=1, pinned_tokens=100)
    llm.pin(SYSTEM)
    found = llm.generate("fox", SamplingParams(max_tokens=10_000, ignore_eos=True))[0]
    assert found.num_prompt_tokens + len(found.token_ids) == llm.max_len
