"""What cannot be done is refused by name, as an OpenAI error object, and nothing else is disturbed."""

import json
from typing import Any

import pytest

from tests.served import Server

TEXT = {"prompt": "the quick brown fox", "max_tokens": 4, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}


def error_of(server: Server, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    response = server.post(path, body)
    assert response.status_code == status, response.text
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert isinstance(error["code"], str)
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 3),
        ("suffix", "end"),
        ("use_beam_search", True),
        ("prompt_logprobs", 1),
        ("guided_whatever", {}),
        ("truncate_prompt_tokens", 4),
        ("regex", "a+"),
        ("skip_special_tokens", False),
        ("include_stop_str_in_output", True),
        ("unheard_of", "x"),
    ],
)
def test_a_parameter_that_is_not_supported_is_refused_by_name(server: Server, field: str, value: Any) -> None:
    error = error_of(server, "/v1/completions", {**TEXT, field: value})
    assert error["param"] == field
    assert error["code"] == "unsupported_parameter"
    assert field in error["message"]


def test_parameters_at_the_value_that_asks_for_nothing_are_taken(server: Server) -> None:
    body = {**TEXT, "best_of": 1, "suffix": None, "use_beam_search": False, "echo": False, "user": "me", "top_k": -1}
    body |= {"prompt_logprobs": None, "logit_bias": None, "stop": None, "skip_special_tokens": True, "n": None}
    assert server.post("/v1/completions", body).status_code == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"stop_token_ids": [2**70]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"logit_bias": {str(2**70): 1}}, "logit_bias"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 65}, "n"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logit_bias": {"fox": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": [""]}, None),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, None),
        ({"prompt": ""}, None),
        ({"prompt": [0, 100000]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [1] * 256}, None),
        ({"prompt": "\ud800"}, "prompt"),
        ({"stop": "\ud800"}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"echo": True, "max_tokens": 0, "min_tokens": 1}, "min_tokens"),
        ({"echo": True, "logprobs": 21}, "logprobs"),
        ({"speculation": {"steps": -1}}, "speculation"),
        ({"speculation": {"steps": 4}}, None),
        ({"speculation": {"depth": 1}}, "speculation"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_sentence(
    server: Server, change: dict[str, Any], param: str | None
) -> None:
    body = {**TEXT, **change}
    with server.http as client:
        data = json.dumps(body).encode("utf-8", "surrogatepass")
        response = client.post("/v1/completions", content=data, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert "\n" not in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"content": "no role"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
        [{"role": "user", "content": 5}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{no json"}}]}],
        "hello",
    ],
)
def test_messages_that_are_none_are_refused(server: Server, messages: Any) -> None:
    assert error_of(server, "/v1/chat/completions", {**CHAT, "messages": messages})["param"] == "messages"


def test_content_in_parts_of_text_is_joined(server: Server) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    whole = server.post("/v1/chat/completions", CHAT).json()
    joined = server.post("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": parts}]}).json()
    assert joined["choices"][0]["message"] == whole["choices"][0]["message"]


def test_tools_are_refused_where_the_template_knows_none(server: Server) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    assert error_of(server, "/v1/chat/completions", {**CHAT, "tools": tools})["param"] == "tools"


def test_another_model_is_not_found_whatever_its_name_tries(server: Server) -> None:
    for name in ("gpt-4", "../../etc/passwd", "/etc/passwd", "tiny/../tiny", "%2e%2e%2f", "\x00"):
        error = error_of(server, "/v1/completions", {**TEXT, "model": name}, status=404)
        assert error["code"] == "model_not_found"
    for path in ("/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/v1/models/gpt-4"):
        response = server.get(path)
        assert response.status_code == 404
        assert "root:" not in response.text
    assert server.get("/v1/models/tiny").json()["id"] == "tiny"


def test_unknown_paths_and_methods_are_error_objects_too(server: Server) -> None:
    assert error_of(server, "/v2/completions", {}, status=404)["code"] == "not_found"
    response = server.get("/v1/completions")
    assert response.status_code == 405
    assert response.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"prompt": 1e999}', b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_a_bad_request(server: Server, content: bytes) -> None:
    with server.http as client:
        response = client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(server: Server) -> None:
    error = error_of(server, "/v1/completions", {**TEXT, "prompt": "a" * 600_000}, status=413)
    assert error["code"] == "body_too_large"

    def drip() -> Any:
        for _ in range(100):
            yield b" " * 10_000

    with server.http as client:
        response = client.post("/v1/completions", content=drip(), headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


def test_what_cannot_be_recorded_is_said(server: Server) -> None:
    assert "--profile-dir" in error_of(server, "/start_profile", None)["message"]
    assert "/start_profile" in error_of(server, "/stop_profile", None)["message"]


def test_a_prompt_that_fills_the_context_is_refused_by_the_engine(server: Server) -> None:
    error = error_of(server, "/v1/completions", {**TEXT, "prompt": [5] * 300})
    assert "256" in error["message"]
    stream = server.post("/v1/completions", {**TEXT, "prompt": [5] * 300, "stream": True})
    assert stream.status_code == 400
