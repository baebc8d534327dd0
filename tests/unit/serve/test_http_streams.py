"""Server-sent events: what comes, in which order, and that it says what the whole answer says."""

import json
from typing import Any

import pytest

from tests.served import Server, chunks_of, events_of

CHAT = {"messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 24, "temperature": 0}
TEXT = {"prompt": "the quick brown fox", "max_tokens": 24, "temperature": 0}


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


def test_a_chat_streams_its_role_then_what_each_forward_brought_then_done(server: Server) -> None:
    whole = server.post("/v1/chat/completions", {**CHAT, "speculation": {"metrics": True}}).json()
    response = server.post("/v1/chat/completions", {**CHAT, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = chunks_of(response)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]
    cycles = whole["metrics"]["speculative_decoding"]["num_spec_steps"]
    assert len(chunks) == 1 + 1 + cycles  # the role, the prompt's forward, one a cycle
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_comes_in_a_chunk_of_its_own_before_done(server: Server) -> None:
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    chunks = chunks_of(server.post("/v1/chat/completions", body))
    whole = server.post("/v1/chat/completions", CHAT).json()
    assert chunks[-1]["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert chunks[-1]["usage"][name] == whole["usage"][name]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_continuous_usage_counts_up(server: Server) -> None:
    body = {**TEXT, "stream": True, "stream_options": {"continuous_usage_stats": True}}
    chunks = chunks_of(server.post("/v1/completions", body))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 24


def test_a_completion_streams_what_it_says_whole(server: Server) -> None:
    whole = server.post("/v1/completions", TEXT).json()
    chunks = chunks_of(server.post("/v1/completions", {**TEXT, "stream": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"


def test_every_choice_streams_by_its_index(server: Server) -> None:
    body = {"prompt": ["the quick", "1234 +"], "max_tokens": 8, "n": 2, "seed": 4, "temperature": 1.0}
    whole = server.post("/v1/completions", body).json()["choices"]
    chunks = chunks_of(server.post("/v1/completions", {**body, "stream": True}))
    texts = ["", "", "", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole]
    assert [choice["index"] for choice in whole] == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(6))
def test_no_event_holds_half_a_character(server: Server, seed: int) -> None:
    body = {"prompt": "\u4f60\u597d", "max_tokens": 60, "seed": seed, "ignore_eos": True}
    whole = server.post("/v1/completions", body).json()["choices"][0]["text"]
    response = server.post("/v1/completions", {**body, "stream": True})
    texts = [json.loads(event)["choices"][0]["text"] for event in events_of(response)[:-1]]
    assert "".join(texts) == whole
    response.content.decode("utf-8")
    for text in texts[:-1]:  # a broken byte is released when what follows shows that it stays one
        assert not text.endswith("\ufffd") or whole.startswith("".join(texts[: texts.index(text) + 1]))


def test_a_stop_string_never_shows_in_a_stream(server: Server) -> None:
    free = server.post("/v1/completions", {**TEXT, "max_tokens": 40}).json()["choices"][0]["text"]
    stop = free[6:9]
    body = {**TEXT, "max_tokens": 40, "stop": stop, "stream": True}
    chunks = chunks_of(server.post("/v1/completions", body))
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == free[: free.index(stop)]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_speculation_metrics_ride_on_the_last_chunk(server: Server) -> None:
    body = {**TEXT, "stream": True, "speculation": {"metrics": True}}
    last = chunks_of(server.post("/v1/completions", body))[-1]
    assert last["metrics"]["speculative_decoding"]["num_spec_tokens"] == 3
    body["stream_options"] = {"include_usage": True}
    chunks = chunks_of(server.post("/v1/completions", body))
    assert [("metrics" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["usage"] is not None


def parts_of(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    """What the chunks of one choice say of its tokens."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return [choice["speculation"] for choice in choices if "speculation" in choice]


def test_chunks_say_which_of_their_text_was_drafted(server: Server) -> None:
    ask = [{"role": "user", "content": "good day"}]  # of its answer the tiny draft guesses some
    body = {**CHAT, "messages": ask, "stream": True, "speculation": {"parts": True, "metrics": True}}
    chunks = chunks_of(server.post("/v1/chat/completions", body))
    counts = chunks[-1]["metrics"]["speculative_decoding"]
    told = parts_of(chunks)
    assert len(told) == len(chunks) - 1  # all but the role
    assert told[0]["tokens"] == 1
    assert told[0]["accepted"] == 0  # the prompt's forward
    assert len(told) - 1 == counts["num_spec_steps"]
    assert sum(each["tokens"] for each in told[1:]) / len(told[1:]) == counts["mean_acceptance_length"]
    assert any(each["accepted"] for each in told)
    for chunk in chunks[1:]:
        (choice,) = chunk["choices"]
        assert "".join(part["text"] for part in choice["speculation"]["parts"]) == choice["delta"]["content"]
        assert choice["speculation"]["accepted"] in (
            choice["speculation"]["tokens"] - 1,
            choice["speculation"]["tokens"],
        )


def test_without_steps_nothing_was_drafted(server: Server) -> None:
    body = {**TEXT, "stream": True, "speculation": {"parts": True, "steps": 0}}
    told = parts_of(chunks_of(server.post("/v1/completions", body)))
    assert {(each["tokens"], each["accepted"]) for each in told} == {(1, 0)}
    assert not any(part["drafted"] for each in told for part in each["parts"])


def test_parts_of_several_answers_and_before_a_stop_are_their_texts(server: Server) -> None:
    body = {**TEXT, "n": 2, "seed": 5, "temperature": 1.0, "stop": ["e", "o"], "stream": True}
    chunks = chunks_of(server.post("/v1/completions", {**body, "speculation": {"parts": True}}))
    for index in range(2):
        text = "".join(each["text"] for chunk in chunks for each in chunk["choices"] if each["index"] == index)
        assert "".join(part["text"] for told in parts_of(chunks, index) for part in told["parts"]) == text


def test_parts_come_only_where_they_are_asked_for_and_only_in_streams(server: Server) -> None:
    plain = chunks_of(server.post("/v1/completions", {**TEXT, "stream": True, "speculation": {"metrics": True}}))
    assert parts_of(plain) == []
    refused = server.post("/v1/completions", {**TEXT, "speculation": {"parts": True}})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "speculation.parts"
    assert server.post("/v1/completions", {**TEXT, "speculation": {"parts": False}}).status_code == 200
