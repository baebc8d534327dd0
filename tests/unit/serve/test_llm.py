"""The Python door: prompts in, answers out, in order, the same however they are asked for."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slipstream import LLM, SamplingParams
from slipstream.serve.budget import Budget
from slipstream.serve.settle import settle_device
from tests.unit.cli.world import World, make_world

PARAMS = SamplingParams(max_tokens=24)
PROMPTS = ["the quick brown fox", "1234 + 5678", "the lazy dog"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def llm(world: World) -> LLM:
    return LLM(world.model, draft=world.draft, steps=3, seed=5)


def test_text_ids_and_counts_of_an_answer_belong_together(llm: LLM) -> None:
    for completion in llm.generate(PROMPTS, PARAMS):
        assert completion.text == llm.tokenizer.decode(list(completion.token_ids))
        assert completion.statistics.emitted == len(completion.token_ids) - 1 == sum(completion.runs)
        assert completion.num_prompt_tokens == len(llm.tokenizer.encode(completion.prompt))
        assert completion.prefill_s > 0


def test_a_prompt_may_be_a_text_a_list_of_texts_or_token_ids(llm: LLM) -> None:
    ids = [llm.tokenizer.encode(text) for text in PROMPTS]
    by_text = [each.token_ids for each in llm.generate(PROMPTS, PARAMS)]
    assert [each.token_ids for each in llm.generate(ids, PARAMS)] == by_text
    assert llm.generate(PROMPTS[0], PARAMS)[0].token_ids == by_text[0]


def test_a_draft_changes_no_token(world: World, llm: LLM) -> None:
    plain = LLM(world.model, draft=None)
    sampled = SamplingParams(max_tokens=24, temperature=0.8, seed=3)
    for params in (PARAMS, sampled):
        expected = [each.token_ids for each in plain.generate(PROMPTS, params)]
        assert [each.token_ids for each in llm.generate(PROMPTS, params)] == expected


def test_a_stream_brings_the_answer_in_pieces(llm: LLM) -> None:
    message = [{"role": "user", "content": PROMPTS[0]}]
    expected = llm.chat(message, PARAMS)[0]
    pieces = list(llm.stream(message, PARAMS))
    assert "".join(piece.text for piece in pieces) == expected.text
    assert tuple(token for piece in pieces for token in piece.token_ids) == expected.token_ids
    assert all(0 <= piece.accepted <= len(piece.token_ids) for piece in pieces)
    assert pieces[-1].completion is not None
    assert pieces[-1].completion.token_ids == expected.token_ids


def test_a_stream_that_is_left_frees_its_request(llm: LLM) -> None:
    free = llm.engine.pages.num_free
    stream = llm.stream(PROMPTS[0], PARAMS)
    next(stream)
    assert llm.engine.busy
    stream.close()
    assert not llm.engine.busy
    assert llm.engine.pages.num_free == free


def test_each_piece_of_a_stream_brings_the_text_of_its_own_tokens(llm: LLM) -> None:
    tokens, text = [], ""
    for piece in llm.stream(PROMPTS[0], SamplingParams(max_tokens=24, ignore_eos=True)):
        tokens, text = [*tokens, *piece.token_ids], text + piece.text
        assert llm.tokenizer.decode(tokens).startswith(text)


def test_while_a_stream_is_open_nothing_else_is_answered(llm: LLM) -> None:
    stream = llm.stream(PROMPTS[0], PARAMS)
    next(stream)
    with pytest.raises(ValueError, match="still being streamed"):
        llm.generate(PROMPTS, PARAMS)
    with pytest.raises(ValueError, match="still being streamed"):
        next(llm.stream(PROMPTS[1], PARAMS))
    rest = list(stream)
    assert rest[-1].completion is not None
    assert len(llm.generate(PROMPTS, PARAMS)) == len(PROMPTS)


def test_a_dynamic_rope_is_not_stretched_within_the_models_own_context(world: World, tmp_path: Path) -> None:
    model = Path(shutil.copytree(world.model, tmp_path / "model"))
    file = model / "config.json"
    raw = json.loads(file.read_text())
    scaling = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    file.write_text(json.dumps({**raw, "rope_parameters": scaling, "rope_scaling": None}))
    stretched, plain = (LLM(str(path), draft=None).worker.target.rope for path in (model, world.model))
    assert torch.equal(stretched.cos_PF, plain.cos_PF)


def test_a_token_without_an_embedding_is_refused(world: World) -> None:
    llm = LLM(world.model, draft=None)
    llm.tokenizer.raw.add_tokens(["[NEW]"])
    with pytest.raises(ValueError, match="outside the model's vocabulary"):
        llm.generate("fox [NEW]", PARAMS)


def test_several_conversations_and_parameters_keep_their_order(llm: LLM) -> None:
    conversations = [[{"role": "user", "content": text}] for text in PROMPTS]
    lengths = [20, 3, 11]
    found = llm.chat(conversations, [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths])
    assert [len(each.token_ids) for each in found] == lengths
    assert [each.finish_reason for each in found] == ["length"] * 3
    assert all(text in each.prompt for text, each in zip(PROMPTS, found, strict=True))


def test_seeds_are_reported_and_an_engine_seed_makes_them_reproducible(world: World) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0)
    runs = [LLM(world.model, draft=world.draft, seed=9).generate(PROMPTS, params) for _ in range(2)]
    assert [each.seed for each in runs[0]] == [each.seed for each in runs[1]]
    assert [each.token_ids for each in runs[0]] == [each.token_ids for each in runs[1]]
    again = SamplingParams(max_tokens=12, temperature=1.0, seed=runs[0][1].seed)
    assert LLM(world.model, draft=None).generate(PROMPTS[1], again)[0].token_ids == runs[0][1].token_ids


def test_one_impossible_prompt_stops_the_call_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(ValueError, match="context holds 256"):
        llm.generate([PROMPTS[0], "x " * 600], PARAMS)
    assert not llm.engine.busy
    with pytest.raises(ValueError, match="outside the model's vocabulary"):
        llm.generate([[1, 10**6]], PARAMS)
    with pytest.raises(ValueError, match=r"prompt 2 of 2: .*context holds 256"):
        llm.generate([PROMPTS[0], "x " * 600], PARAMS)
    with pytest.raises(ValueError, match="conversation is empty"):
        llm.chat([[], [{"role": "user", "content": "hello"}]], PARAMS)
    with pytest.raises(ValueError, match=r"give a list of prompts: \[\["):
        llm.generate([1, 2, 3], PARAMS)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="2 prompts"):
        llm.generate(PROMPTS[:2], [PARAMS])


@pytest.mark.parametrize("shape", [{"steps": 3}, {"steps": 3, "topk": 2, "draft_tokens": 6}], ids=str)
def test_bf16_runs_chains_and_trees(world: World, shape: dict[str, int]) -> None:
    llm = LLM(world.model, draft=world.draft, dtype="bfloat16", **shape)  # type: ignore[arg-type]
    found = llm.generate(PROMPTS, SamplingParams(max_tokens=24, ignore_eos=True))
    assert [len(each.token_ids) for each in found] == [24] * 3
    assert sum(each.statistics.accepted for each in found) > 0


REFUSED = [
    ({"steps": 3, "draft": None}, "need a draft"),
    ({"device": "tpu"}, "'tpu' is unknown"),
    ({"dtype": "int3"}, "'int3' is unknown"),
    ({"max_len": 10**6}, "beyond the model's context"),
    ({"max_batch": 0}, "max_batch"),
    ({"kv_gib": 0.0}, "raise kv_gib"),
    ({"capture_convention": "sideways"}, "'sideways' is unknown"),
    ({"steps": 4, "draft_tokens": 9}, "contradicts steps"),
    ({"graph_sizes": (1, 2), "device": "cpu"}, "what is captured on CUDA, and the device is cpu"),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_options_that_cannot_be_honoured_are_refused(world: World, options: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        LLM(world.model, **{"draft": world.draft, **options})  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_without_a_device_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="no CUDA device"):
        LLM(world.model, draft=world.draft, device="cuda:0")


def test_a_cuda_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert settle_device("cuda:1").index == 1
    with pytest.raises(ValueError, match="cuda:2 was asked for but torch sees 2"):
        settle_device("cuda:2")


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no config"):
        LLM(str(tmp_path))


def test_a_longer_cycle_leaves_room_for_the_whole_context(world: World, llm: LLM) -> None:
    longest = SamplingParams(max_tokens=10_000, ignore_eos=True)
    one = LLM(world.model, draft=world.draft, steps=0, max_batch=1)
    expected = one.generate(PROMPTS[0], longest)[0].token_ids
    one.reconfigure(steps=16)
    assert one.generate(PROMPTS[0], longest)[0].token_ids == expected


def test_a_longer_cycle_that_finds_no_room_changes_nothing(world: World) -> None:
    one = LLM(world.model, draft=world.draft, steps=2, max_batch=1)
    expected = one.generate(PROMPTS[0], PARAMS)[0].token_ids
    one.started.wanted = replace(one.started.wanted, budget=Budget(kv_gib=1e-6))
    with pytest.raises(ValueError, match="raise kv_gib"):
        one.reconfigure(steps=9)
    assert one.speculation.steps == 2
    assert one.generate(PROMPTS[0], PARAMS)[0].token_ids == expected


def test_without_a_draft_there_is_nothing_to_make_longer(world: World) -> None:
    plain = LLM(world.model, draft=None)
    with pytest.raises(ValueError, match="there is no draft to speculate with"):
        plain.reconfigure(steps=3)
    plain.reconfigure(draft=world.draft, steps=3)
    assert plain.speculation.steps == 3
    assert plain.generate(PROMPTS[0], PARAMS)[0].statistics.proposed > 0


def test_a_relative_path_stays_what_it_was(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(Path(world.model).parent)
    one = LLM("model", draft="draft", steps=2)
    expected = one.generate(PROMPTS[0], PARAMS)[0].token_ids
    monkeypatch.chdir(tmp_path)
    one.reconfigure(draft=world.draft)
    one.reconfigure(draft_tp=1)
    assert one.generate(PROMPTS[0], PARAMS)[0].token_ids == expected
