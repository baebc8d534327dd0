"""`echo` with `logprobs`: what scores given answers reads, beside transformers, in vLLM's shape."""

from typing import Any

import pytest
import tokenizers
import torch
from tokenizers.processors import TemplateProcessing

from slipstream.serve.http.texts import Texts
from slipstream.text.tokenizer import Tokenizer
from tests.served import Server, chunks_of
from tests.unit.cli.world import World
from tests.unit.text import tiny_tokenizer
from tests.unit.text.tiny_tokenizer import BOS

PROMPTS = ["the quick brown fox jumps", "caf\u00e9 \u4f60\u597d", "1234 + 5678" * 6]
ECHO = {"echo": True, "logprobs": 2, "max_tokens": 0, "temperature": 0}


@pytest.fixture(scope="module")
def theirs(http_world: World) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(http_world.model).eval()


@pytest.fixture(scope="module")
def ids() -> list[list[int]]:
    raw = tiny_tokenizer.raw()
    return [raw.encode(text).ids for text in PROMPTS]


def asked(server: Server, prompt: Any, **more: Any) -> dict[str, Any]:
    response = server.post("/v1/completions", {"prompt": prompt, **ECHO, **more})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("as_ids", [False, True], ids=["texts", "ids"])
def test_a_prompts_logprobs_are_those_of_transformers(
    server: Server, theirs: Any, ids: list[list[int]], as_ids: bool
) -> None:
    answer = asked(server, ids if as_ids else PROMPTS)
    raw = tiny_tokenizer.raw()
    for choice, prompt, text in zip(answer["choices"], ids, PROMPTS, strict=True):
        with torch.inference_mode():
            wanted = theirs(torch.tensor([prompt])).logits[0].log_softmax(-1)
        found = choice["logprobs"]
        assert choice["text"] == text
        assert choice["finish_reason"] == "length"
        assert found["tokens"] == [raw.decode([token], skip_special_tokens=False) for token in prompt]
        assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
        likely = [float(wanted[at, token]) for at, token in enumerate(prompt[1:])]
        assert found["token_logprobs"][1:] == pytest.approx(likely, abs=1e-4)
        for at, top in enumerate(found["top_logprobs"][1:]):
            assert top[found["tokens"][at + 1]] == found["token_logprobs"][at + 1]
            if not any("\ufffd" in name for name in top):  # bytes read alike
                assert max(top.values()) == pytest.approx(float(wanted[at].max()), abs=1e-4)
        lengths = {len(each) for each in found.values()}
        assert lengths == {len(prompt)}
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))


def test_an_answers_logprobs_follow_the_prompts_and_offsets_point_into_the_text(server: Server) -> None:
    whole = asked(server, PROMPTS[1], max_tokens=5, ignore_eos=True)["choices"][0]
    plain = asked(server, PROMPTS[1], max_tokens=5, ignore_eos=True, echo=False)["choices"][0]
    found, alone = whole["logprobs"], plain["logprobs"]
    assert whole["text"] == PROMPTS[1] + plain["text"]
    assert found["tokens"][-5:] == alone["tokens"]
    assert found["token_logprobs"][-5:] == pytest.approx(alone["token_logprobs"])
    assert found["text_offset"][-5:] == [len(PROMPTS[1]) + each for each in alone["text_offset"]]
    for token, offset in zip(found["tokens"][:-5], found["text_offset"], strict=False):
        if "\ufffd" not in token:
            assert whole["text"].startswith(token, offset)


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_brings_the_same_as_the_whole_answer(server: Server, n: int) -> None:
    body = {"prompt": PROMPTS[:2], **ECHO, "max_tokens": 6, "n": n, "temperature": 1, "seed": 3}
    whole = server.post("/v1/completions", body).json()["choices"]
    chunks = chunks_of(server.post("/v1/completions", {**body, "stream": True}))
    for choice in whole:
        parts = [one for each in chunks for one in each["choices"] if one["index"] == choice["index"]]
        assert "".join(each["text"] for each in parts) == choice["text"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            values = [value for each in parts if each["logprobs"] for value in each["logprobs"][name]]
            assert values == choice["logprobs"][name]


def test_a_stream_of_the_prompt_alone_has_no_token_of_an_answer(server: Server) -> None:
    before = server.number('slipstream_answers_total{finish_reason="length"}')
    chunks = chunks_of(server.post("/v1/completions", {"prompt": PROMPTS[0], **ECHO, "stream": True}))
    parts = [each["choices"][0] for each in chunks]
    assert [each["text"] for each in parts] == [PROMPTS[0], ""]
    assert [each["finish_reason"] for each in parts] == [None, "length"]
    assert parts[1]["logprobs"] is None
    assert server.number('slipstream_answers_total{finish_reason="length"}') == before + 1


def test_a_prompt_that_is_cached_is_scored_all_the_same(server: Server) -> None:
    prompt = PROMPTS[2]
    first = asked(server, prompt)
    server.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})
    again = asked(server, prompt)
    assert again["choices"][0]["logprobs"] == first["choices"][0]["logprobs"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_token_that_the_text_does_not_show_begins_where_the_text_does() -> None:
    raw: tokenizers.Tokenizer = tiny_tokenizer.raw()
    begin = raw.token_to_id(BOS)
    raw.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, begin)])
    tokenizer = Tokenizer(raw, bos_id=begin, eos_ids=())
    texts, ids = Texts(tokenizer, None, vocab_size=raw.get_vocab_size()), tokenizer.encode("the fox")
    assert ids[0] == begin
    assert texts.offsets(ids, "the fox")[:2] == [0, 0]
    assert texts.offsets(ids, f"{BOS}the fox")[1] == len(BOS)
