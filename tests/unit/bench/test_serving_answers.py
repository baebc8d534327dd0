"""Streams as servers send them: when tokens came, how many, and why there are none."""

import json
from typing import Any

import pytest

from slipstream.bench.serving.answer import Answer, Failure, Reason, read_answer
from slipstream.bench.serving.response import Response


def streamed(*events: Any, newline: str = "\n\n", status: int = 200) -> Response:
    """A response whose event i came at i + 1 seconds."""
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    pieces = [(place + 1.0, f"data: {line}{newline}".encode()) for place, line in enumerate(lines)]
    return Response(status=status, pieces=pieces, began_s=0.5, ended_s=len(lines) + 1.0)


def text(content: str, *, tokens: int | None = None, finish: str | None = None) -> dict[str, Any]:
    """A chunk of a completion."""
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 4, "completion_tokens": tokens}}
    return {"choices": [{"index": 0, "text": content, "finish_reason": finish}], **usage}


def answer_of(response: Response) -> Answer:
    found = read_answer(response)
    assert isinstance(found, Answer), found
    return found


def failure_of(response: Response) -> Failure:
    found = read_answer(response)
    assert isinstance(found, Failure), found
    return found


USAGE = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 6}}


def test_tokens_of_each_chunk_are_what_the_usage_grew_by() -> None:
    found = answer_of(
        streamed(text("a", tokens=1), text("", tokens=3), text("b", tokens=6, finish="length"), USAGE, "[DONE]")
    )
    assert (found.chunk_s, found.chunk_tokens) == ((1.0, 2.0, 3.0), (1, 2, 3))
    assert (found.num_input, found.num_output, found.counted, found.finish_reason) == (4, 6, True, "length")
    assert (found.first_s, found.seconds, found.gaps_s) == (0.5, 2.5, [1.0, 1.0])
    assert found.per_token_s == pytest.approx(2.0 / 5)


def test_without_usage_of_each_chunk_only_the_total_is_known() -> None:
    found = answer_of(streamed(text("a"), text(""), text("b", finish="stop"), USAGE, "[DONE]"))
    assert (found.chunk_s, found.chunk_tokens, found.num_output, found.counted) == ((1.0, 3.0), None, 6, True)


def test_without_any_usage_chunks_are_counted_and_said_to_be() -> None:
    found = answer_of(streamed(text("a"), text("b"), "[DONE]"))
    assert (found.num_output, found.counted, found.num_input) == (2, False, None)


def test_a_role_is_no_token_but_a_thought_and_a_call_are() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"tool_calls": [{"index": 0}]},
        {"content": "x"},
    ]
    found = answer_of(streamed(*({"choices": [{"delta": delta}]} for delta in deltas), "[DONE]"))
    assert found.chunk_s == (2.0, 3.0, 4.0)


def test_single_newlines_and_comments_do_not_disturb() -> None:
    response = streamed(text("a"), text("b"), "[DONE]", newline="\n")
    response.pieces.insert(1, (1.5, b": ping\n\n"))
    assert answer_of(response).chunk_s == (1.0, 2.0)


def test_an_event_counts_from_when_its_line_was_whole() -> None:
    whole = f"data: {json.dumps(text('a'))}\n\ndata: [DONE]\n\n".encode()
    response = Response(status=200, pieces=[(1.0, whole[:9]), (2.0, whole[9:])], began_s=0.0, ended_s=2.0)
    assert answer_of(response).chunk_s == (2.0,)


def test_counts_of_speculation_are_kept_wherever_they_stand() -> None:
    ours = answer_of(
        streamed(text("a"), {**USAGE, "metrics": {"speculative_decoding": {"num_spec_steps": 3}}}, "[DONE]")
    )
    assert (ours.speculation, ours.meta) == ({"num_spec_steps": 3}, None)
    none = answer_of(streamed(text("a"), {**USAGE, "metrics": {"speculative_decoding": None}}, "[DONE]"))
    assert none.speculation is None
    theirs = answer_of(streamed({"choices": [{"text": "a", "meta_info": {"spec_verify_ct": 2}}]}, "[DONE]"))
    assert theirs.meta == {"spec_verify_ct": 2}


@pytest.mark.parametrize(
    ("events", "reason", "said"),
    [
        ((text("a"), text("b")), Reason.BROKEN, "ended without [DONE], after 2 chunks"),
        ((text("a"), {"error": {"message": "gone"}}), Reason.STREAM, "gone"),
        ((text("a"), {"error": "gone"}), Reason.STREAM, "gone"),
        ((text(""), "[DONE]"), Reason.BROKEN, "holds no tokens"),
        (({"choices": ["a"]}, "[DONE]"), Reason.BROKEN, "something else"),
        (({"choices": [], "usage": {"completion_tokens": "many"}}, "[DONE]"), Reason.BROKEN, "something else"),
        (("{oh", "[DONE]"), Reason.BROKEN, "no JSON object: {oh"),
    ],
)
def test_a_stream_that_is_no_answer_says_why(events: tuple[Any, ...], reason: Reason, said: str) -> None:
    found = failure_of(streamed(*events))
    assert found.reason is reason
    assert said in found.sentence


@pytest.mark.parametrize(
    ("status", "body", "reason", "said"),
    [
        (401, {"error": {"message": "no key", "code": "x"}}, Reason.KEY, "401: no key"),
        (404, {"object": "error", "message": "no model"}, Reason.NOT_FOUND, "404: no model"),
        (422, {"detail": [1]}, Reason.REFUSED, "[1]"),
        (429, {"error": {"message": "slow down"}}, Reason.TOO_MANY, "slow down"),
        (503, "down\nfor now", Reason.SERVER, "503: down for now"),
    ],
)
def test_a_status_becomes_a_reason_with_the_servers_words(status: int, body: Any, reason: Reason, said: str) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    found = failure_of(Response(status=status, pieces=[(1.0, content.encode())]))
    assert found.reason is reason
    assert said in found.sentence


def test_a_redirection_names_where_to() -> None:
    found = failure_of(Response(status=307, headers={"location": "http://there/"}))
    assert (found.reason, "http://there/" in found.sentence) == (Reason.REFUSED, True)
