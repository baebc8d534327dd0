"""The openai client's calls, as its users write them, against a tiny model."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from slipstream import LLM, SamplingParams
from tests.served import Server
from tests.unit.cli.world import World

PROMPT = "the quick brown fox"
MESSAGES = [{"role": "user", "content": PROMPT}]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def llm(http_world: World) -> LLM:
    return LLM(http_world.model, draft=None)


def test_a_chat_says_what_the_python_door_says(client: openai.OpenAI, llm: LLM) -> None:
    (expected,) = llm.chat(MESSAGES, SamplingParams(max_tokens=24))
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=24, temperature=0)
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == expected.finish_reason
    assert answer.usage.prompt_tokens == expected.num_prompt_tokens
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert answer.usage.total_tokens == expected.num_prompt_tokens + len(expected.token_ids)
    assert answer.model == "tiny"


def test_completions_take_texts_and_ids_alone_and_in_lists(client: openai.OpenAI, llm: LLM) -> None:
    texts = [PROMPT, "1234 + 5678"]
    expected = [each.text for each in llm.generate(texts, SamplingParams(max_tokens=12))]
    ids = [llm.tokenizer.encode(text) for text in texts]
    for prompt, wanted in ((texts, expected), (ids, expected), (texts[0], expected[:1]), (ids[1], expected[1:])):
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=12, temperature=0)
        assert [choice.text for choice in answer.choices] == wanted


def test_a_completion_without_max_tokens_has_sixteen(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=PROMPT, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16


def test_a_chat_without_max_tokens_goes_on_to_the_context(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == 256
    assert answer.choices[0].finish_reason == "length"


def test_a_seed_repeats_an_answer_and_n_answers_differ(client: openai.OpenAI) -> None:
    def texts(seed: int) -> list[str]:
        answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=16, n=3, seed=seed, temperature=1)
        return [choice.text for choice in answer.choices]

    first = texts(7)
    assert texts(7) == first
    assert len(set(first)) == 3
    assert texts(-7) != first


def test_sampled_answers_are_the_same_with_and_without_speculation(client: openai.OpenAI) -> None:
    texts = set()
    for steps in (0, 1, 3):
        answer = client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_tokens=32,
            seed=5,
            temperature=0.7,
            extra_body={"speculation": {"steps": steps, "metrics": True}},
        )
        texts.add(answer.choices[0].message.content)
        counts = answer.metrics["speculative_decoding"]  # the client keeps what it does not know
        assert (counts["num_draft_tokens"] > 0) == (steps > 0)
        assert counts["num_accepted_draft_tokens"] <= counts["num_draft_tokens"]
        assert counts["mean_acceptance_length"] == 1 + counts["num_accepted_draft_tokens"] / counts["num_spec_steps"]
        assert sum(counts["acceptance_histogram"]) == counts["num_spec_steps"]
        assert len(counts["acceptance_histogram"]) == counts["num_spec_tokens"] + 1 == 4
        accepted = sum(place * count for place, count in enumerate(counts["acceptance_histogram"]))
        assert accepted == counts["num_accepted_draft_tokens"]
    assert len(texts) == 1


def test_an_answer_is_silent_about_speculation_unless_asked(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4)
    assert "metrics" not in answer.model_extra


def test_a_stop_ends_an_answer_before_it(client: openai.OpenAI) -> None:
    free = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=40, temperature=0).choices[0].text
    stop = free[5:8]
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=40, temperature=0, stop=[stop, "zzz"])
    assert answer.choices[0].text == free[: free.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_echo_gives_the_prompt_back(client: openai.OpenAI) -> None:
    plain = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, temperature=0)
    echoed = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, temperature=0, echo=True)
    assert echoed.choices[0].text == PROMPT + plain.choices[0].text


def test_logprobs_of_a_completion_belong_to_its_tokens(client: openai.OpenAI, llm: LLM) -> None:
    (expected,) = llm.generate([PROMPT], SamplingParams(max_tokens=8, logprobs=2))
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, temperature=0, logprobs=2)
    found = answer.choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset) == 8
    assert found.token_logprobs == pytest.approx([each.chosen.raw for each in expected.logprobs], abs=1e-5)
    for token, chosen, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert top[token] == chosen == max(top.values())


def test_logprobs_of_a_chat_bring_bytes_that_make_its_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=24, temperature=0, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    text = b"".join(bytes(each.bytes) for each in content).decode("utf-8", "replace")
    assert text.replace("<|end|>", "") == answer.choices[0].message.content
    for each in content:
        assert len(each.top_logprobs) == 3
        assert each.top_logprobs[0].logprob == pytest.approx(each.logprob)
    bare = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2, logprobs=True)
    assert all(each.top_logprobs == [] for each in bare.choices[0].logprobs.content)


def test_streams_read_through_the_client(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=16, temperature=0)
    text, usage = "", None
    for chunk in client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=16,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage
    assert text == whole.choices[0].message.content
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == client.models.retrieve("tiny").id == "tiny"
    assert model.model_extra["max_model_len"] == 256


def test_the_clients_exceptions_are_of_the_right_kind(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.models.retrieve("other")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="tiny", prompt=PROMPT, temperature=-1)
    assert bad.value.param == "temperature"


def test_tokenize_and_detokenize_are_each_others_inverse(server: Server, llm: LLM) -> None:
    found = server.post("/tokenize", {"prompt": PROMPT, "return_token_strs": True}).json()
    assert found["tokens"] == llm.tokenizer.encode(PROMPT)
    assert found["count"] == len(found["tokens"])
    assert found["max_model_len"] == 256
    assert "".join(found["token_strs"]) == PROMPT
    assert server.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": PROMPT}
    chat = server.post("/tokenize", {"messages": MESSAGES}).json()["tokens"]
    assert llm.tokenizer.decode(chat) == llm.render(MESSAGES)
    assert server.post("/tokenize", {}).status_code == 400
    assert server.post("/detokenize", {"tokens": [-1]}).status_code == 400


def test_server_info_says_what_runs(server: Server) -> None:
    info = server.get("/server_info").json()
    assert info["models"] == ["tiny"]
    assert info["speculation"]["steps"] == info["speculation"]["draft_tokens"] == 3
    assert info["wiring"]["captures"] == [2, 4, 5]
    assert info["device"] == "cpu"
    assert info["cost"]["cycle_ratio"]["1"] > 0
    assert info["ranks"][0]["draft_bytes"] > 0
    assert info["warm_up_s"] > 0
    assert info["graphs"] == {"shapes": 0, "seconds": 0, "bytes": 0}, "nothing is captured on a CPU"


def test_docs_describe_every_path(server: Server) -> None:
    assert server.get("/docs").status_code == 200
    paths = server.get("/openapi.json").json()["paths"]
    expected = {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/detokenize", "/health"}
    expected |= {"/ready", "/metrics", "/server_info", "/cycles", "/start_profile", "/stop_profile"}
    assert expected <= set(paths)


def test_a_keep_alive_connection_answers_again_and_again(server: Server) -> None:
    with server.http as client:
        for _ in range(3):
            response: httpx.Response = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 2})
            assert response.status_code == 200
