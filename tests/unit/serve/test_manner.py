"""Priority and speculation of single prompts at the Python door: they change when tokens come, never which."""

import pytest

from slipstream import LLM, SamplingParams
from slipstream.serve.manner import Manner, manners_for
from tests.unit.cli.world import PROMPTS, World, make_world

STEPS = (0, 2, 4, None)
PARAMS = [SamplingParams(max_tokens=24, ignore_eos=True), SamplingParams(max_tokens=24, temperature=0.9, seed=5)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("shape", [{"steps": 4}, {"steps": 4, "topk": 2, "draft_tokens": 9}], ids=["chain", "tree"])
def test_prompts_of_different_steps_share_a_batch_and_get_what_each_gets_alone(
    world: World, shape: dict[str, int], params: SamplingParams
) -> None:
    llm = LLM(world.model, draft=world.draft, prefix_cache=False, **shape)  # type: ignore[arg-type]
    together = llm.generate(PROMPTS, params, steps=STEPS)
    plain = LLM(world.model, draft=None).generate(PROMPTS, params)
    for prompt, steps, found, expected in zip(PROMPTS, STEPS, together, plain, strict=True):
        alone = llm.generate(prompt, params, steps=steps)[0]
        assert found.token_ids == alone.token_ids == expected.token_ids
        assert len(found.statistics.reached) <= (4 if steps is None else steps)
        assert (found.statistics.proposed == 0) == (steps == 0)
        if llm.speculation.is_chain:  # a tree of two levels has other nodes than the upper two of four
            assert found.statistics.histogram == alone.statistics.histogram
    none, two, four, _ = (each.statistics.proposed / each.statistics.cycles for each in together)
    assert none == 0 < two < four


def test_a_chat_and_a_stream_heed_steps_too(world: World) -> None:
    llm = LLM(world.model, draft=world.draft, steps=4)
    message = [{"role": "user", "content": PROMPTS[0]}]
    usual, plain = (llm.chat(message, PARAMS[0], steps=steps)[0] for steps in (None, 0))
    assert usual.token_ids == plain.token_ids
    assert usual.statistics.proposed > 0 == plain.statistics.proposed
    pieces = list(llm.stream(message, PARAMS[0], steps=0))
    assert all(len(piece.token_ids) <= 1 for piece in pieces[1:])
    assert pieces[-1].completion is not None
    assert pieces[-1].completion.token_ids == usual.token_ids


def test_more_important_prompts_are_answered_first(world: World) -> None:
    llm = LLM(world.model, draft=world.draft, steps=2, max_batch=1)
    ended: list[int] = []
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    found = llm.generate(PROMPTS, params, priority=[1, 0, 1, -7], on_finish=lambda place, _: ended.append(place))
    assert ended == [3, 1, 0, 2]
    assert [each.prompt for each in found] == list(PROMPTS)


def test_one_number_holds_for_all_prompts() -> None:
    found = manners_for(3, 0, count=2, most_steps=4)
    assert found == [Manner(priority=3, steps=0)] * 2


def test_numbers_may_be_given_for_each_prompt() -> None:
    found = manners_for((0, -1), [None, 4], count=2, most_steps=4)
    assert found == [Manner(), Manner(priority=-1, steps=4)]


REFUSED = [
    ({"steps": 5}, "prompt 1 of 2: steps 5 was asked for but a cycle of this engine has 4; lower it"),
    ({"steps": [0, 9]}, "prompt 2 of 2: steps 9 was asked for but a cycle"),
    ({"steps": -1}, r"steps is a whole number, 0 \(no speculation\) or more, not -1"),
    ({"steps": [None, 1.5]}, "prompt 2 of 2: steps is a whole number"),
    ({"steps": True}, "not True"),
    ({"steps": "all"}, "not 'all'"),
    ({"steps": [1]}, "steps came 1 times for 2 prompts; give one number, or one for each"),
    ({"priority": [1, 2, 3]}, "priority came 3 times for 2 prompts"),
    ({"priority": None}, r"priority is a whole number \(lower runs first\), not None"),
    ({"priority": [0, "high"]}, "prompt 2 of 2: priority is a whole number"),
]


@pytest.mark.parametrize(("given", "reason"), REFUSED, ids=[str(given) for given, _ in REFUSED])
def test_what_cannot_be_heeded_is_refused(given: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        manners_for(**{"priority": 0, "steps": None, **given}, count=2, most_steps=4)


def test_refused_steps_leave_nothing_behind(world: World) -> None:
    llm = LLM(world.model, draft=None)
    with pytest.raises(ValueError, match="steps 1 was asked for but this engine decodes plainly"):
        llm.generate(PROMPTS, steps=1)
    with pytest.raises(ValueError, match="decodes plainly"):
        next(llm.stream(PROMPTS[0], steps=2))
    assert not llm.engine.busy
    assert [each.statistics.proposed for each in llm.generate(PROMPTS, PARAMS[0], steps=0)] == [0] * 4
