"""The Python door passes every sampling parameter on: words become ids, n answers come together, ends are held off."""

import json

import pytest

from slipstream import LLM, SamplingParams
from slipstream.config.grammar import json_schema, regex
from tests.unit.cli.world import World, make_world

PROMPTS = ["the quick brown fox", "1234 + 5678"]
WARM = {"max_tokens": 24, "temperature": 1.0, "seed": 3}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def llm(world: World) -> LLM:
    return LLM(world.model, draft=world.draft, steps=3, seed=5)


def test_n_answers_stand_together_and_answer_i_has_seed_plus_i(llm: LLM) -> None:
    told: dict[int, int] = {}
    params = SamplingParams(**WARM, n=3)
    found = llm.generate(PROMPTS, params, on_finish=lambda place, each: told.update({place: each.index}))
    assert [each.index for each in found] == [0, 1, 2] * 2
    assert [each.seed for each in found] == [3, 4, 5] * 2
    assert [each.prompt for each in found] == [prompt for prompt in PROMPTS for _ in range(3)]
    assert [told[place] for place in range(6)] == [0, 1, 2] * 2
    for each in found:
        alone = SamplingParams(**{**WARM, "seed": each.seed})
        assert llm.generate(each.prompt, alone)[0].token_ids == each.token_ids
    assert len({each.token_ids for each in found}) == 6


def test_greedy_answers_to_one_prompt_are_equal(llm: LLM) -> None:
    message = [{"role": "user", "content": "hello"}]
    found = llm.chat(message, SamplingParams(max_tokens=12, n=3))
    assert [each.index for each in found] == [0, 1, 2]
    assert len({each.token_ids for each in found}) == 1


def test_a_refusal_names_the_prompt_not_the_answer(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"prompt 2 of 2: .*context holds 256"):
        llm.generate([PROMPTS[0], "x " * 600], SamplingParams(n=3))
    with pytest.raises(ValueError, match="a stream is one answer, not 2"):
        next(llm.stream(PROMPTS[0], SamplingParams(n=2)))
    assert not llm.engine.busy


def test_a_bad_word_never_comes_wherever_tokens_cut_it(llm: LLM) -> None:
    free = llm.generate(PROMPTS[0], SamplingParams(**WARM, ignore_eos=True))[0].text
    words = tuple(dict.fromkeys(free[place : place + 2] for place in range(0, 8, 2) if free[place : place + 2].strip()))
    params = SamplingParams(**WARM, ignore_eos=True, bad_words=words)
    (found,) = llm.generate(PROMPTS[0], params)
    banned = [tuple(llm.tokenizer.encode(word, add_special_tokens=False)) for word in words]
    ids = found.token_ids
    assert any(len(each) == 1 for each in banned) or any(len(each) > 1 for each in banned)
    for each in banned:
        assert each not in [ids[place : place + len(each)] for place in range(len(ids))]


def test_min_tokens_hold_off_eos_and_stop_strings(llm: LLM) -> None:
    text = llm.generate(PROMPTS[0], SamplingParams(max_tokens=24, ignore_eos=True))[0].text
    stopped = SamplingParams(max_tokens=24, ignore_eos=True, stop=(text[1],))
    short = llm.generate(PROMPTS[0], stopped)[0]
    assert len(short.token_ids) < 12
    held = llm.generate(PROMPTS[0], SamplingParams(max_tokens=24, ignore_eos=True, stop=(text[1],), min_tokens=12))[0]
    assert len(held.token_ids) >= 12
    assert held.text.startswith(text[:2])
    eos = next(iter(llm.tokenizer.eos_ids))
    wanted = {"max_tokens": 24, "logit_bias": {eos: 100.0}}
    assert llm.generate(PROMPTS[0], SamplingParams(**wanted))[0].token_ids == (eos,)
    late = llm.generate(PROMPTS[0], SamplingParams(**wanted, min_tokens=9))[0]
    assert (len(late.token_ids), late.token_ids[-1], late.finish_reason) == (10, eos, "stop")


def test_a_stop_inside_an_accepted_run_beats_the_length_and_usage_is_of_what_is_kept(llm: LLM) -> None:
    """Every length is tried, so that in some the stop and the cap fall into one accepted run."""
    full = llm.generate(PROMPTS[0], SamplingParams(max_tokens=24, ignore_eos=True, logprobs=1))[0]
    assert full.statistics.accepted > 0
    for length in range(1, 12):
        stop_ids = (full.token_ids[length - 1],)
        for cap in (length, length + 1):
            params = SamplingParams(max_tokens=cap, ignore_eos=True, stop_ids=stop_ids, logprobs=1)
            found = llm.generate(PROMPTS[0], params)[0]
            first = full.token_ids.index(stop_ids[0]) + 1
            assert found.token_ids == full.token_ids[:first]
            assert found.finish_reason == "stop"
            assert found.statistics.emitted == sum(found.runs) == first - 1
            assert found.logprobs is not None
            assert [each.chosen.token for each in found.logprobs] == list(found.token_ids)


def test_an_answer_follows_its_grammar_with_and_without_speculation(llm: LLM) -> None:
    schema = json_schema({"enum": ["quick", "lazy dog", 17]})
    for params in (SamplingParams(max_tokens=60, grammar=schema), SamplingParams(**WARM, n=3, grammar=schema)):
        found = llm.generate(PROMPTS, params)
        assert all(json.loads(each.text) in json.loads(schema.text)["enum"] for each in found)
        assert {each.finish_reason for each in found} == {"stop"}
        plain = llm.generate(PROMPTS, params, steps=0)
        assert [each.token_ids for each in plain] == [each.token_ids for each in found]


def test_a_grammar_that_means_nothing_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(ValueError, match="the regex cannot be used: unclosed group"):
        llm.generate(PROMPTS, SamplingParams(grammar=regex("(a")))
    assert not llm.engine.busy


def test_a_stream_brings_log_probabilities_with_their_tokens(llm: LLM) -> None:
    params = SamplingParams(**WARM, logprobs=2, presence_penalty=0.5)
    pieces = list(llm.stream(PROMPTS[0], params))
    assert all(len(piece.logprobs or ()) == len(piece.token_ids) for piece in pieces)
    last = pieces[-1].completion
    assert last is not None
    assert last.logprobs == tuple(each for piece in pieces for each in piece.logprobs or ())
    assert last.logprobs == llm.generate(PROMPTS[0], params)[0].logprobs


def test_ids_outside_the_vocabulary_are_refused(llm: LLM) -> None:
    for params in (SamplingParams(logit_bias={10**6: 1}), SamplingParams(bad_word_ids=((3, 10**6),))):
        with pytest.raises(ValueError, match="outside the model's vocabulary"):
            llm.generate(PROMPTS, params)
