"""Whatever a body holds, the server answers it and lives; other requests never notice."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.served import Server, events_of, model_arguments, serving
from tests.unit.cli.world import World

STEADY = {"prompt": "the quick brown fox", "max_tokens": 8, "temperature": 0}
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/start_profile")
NUMBERS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "priority")
OTHERS = ("model", "echo", "user", "bad_words", "stop_token_ids", "tool_choice", "unheard")
EXPECTED = {200, 400, 404, 413, 422, 429}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["auto", "tiny"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
numbers = st.integers(-3, 40) | st.floats(-2, 3)
fields = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.text(max_size=20) | st.lists(st.integers(-1, 400), max_size=20) | values,
        "messages": st.lists(st.dictionaries(st.sampled_from(["role", "content"]), st.text(max_size=8))) | values,
        "tokens": st.lists(st.integers(-1, 400), max_size=9) | values,
        "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=3) | values,
        "logit_bias": st.dictionaries(st.integers(-1, 400).map(str), numbers, max_size=3) | values,
        "response_format": st.sampled_from([{"type": "json_object"}, {"type": "text"}]) | values,
        "structured_outputs": st.dictionaries(
            st.sampled_from(["regex", "choice", "json", "grammar"]), values, max_size=2
        ),
        "tools": values,
        "stream": st.booleans() | values,
        "stream_options": st.sampled_from([{"include_usage": True}, {"continuous_usage_stats": True}]) | values,
        "speculation": st.dictionaries(st.sampled_from(["steps", "metrics", "parts"]), values, max_size=2),
        "n": st.integers(-1, 3) | values,
        "logprobs": st.booleans() | st.integers(-1, 21) | values,
        **dict.fromkeys(NUMBERS, numbers | values),
        **dict.fromkeys(OTHERS, values),
    },
)


@pytest.fixture(scope="module")
def short(http_world: World) -> Iterator[Server]:
    """A server whose longest answers are soon over."""
    arguments = model_arguments(http_world.model, http_world.draft, "--served-model-name", "tiny", "--max-len", "48")
    with serving(*arguments) as found:
        yield found


@pytest.fixture(scope="module")
def client(short: Server) -> Iterator[httpx.Client]:
    with short.http as found:
        yield found


@pytest.fixture(scope="module")
def steady(short: Server) -> dict[str, Any]:
    """What a request gets when nobody disturbs it."""
    return short.post("/v1/completions", STEADY).json()["choices"]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(PATHS), body=st.dictionaries(st.text(max_size=5), values, max_size=2) | fields)
def test_bodies_of_every_kind_are_answered(
    short: Server, client: httpx.Client, steady: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    data = json.dumps(body).encode("utf-8", "surrogatepass")
    response = client.post(path, content=data, headers={"content-type": "application/json"})
    assert response.status_code in EXPECTED, response.text
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert events_of(response)[-1] == "[DONE]"
    else:
        response.json()


def test_afterwards_a_request_gets_what_it_always_got(short: Server, steady: dict[str, Any]) -> None:
    assert short.post("/v1/completions", STEADY).json()["choices"] == steady
    short.wait_until(short.idle)
    assert short.number("slipstream_kv_usage_ratio") == 0


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=80), kind=st.sampled_from(["application/json", "text/plain", "", "multipart/form-data"]))
def test_bytes_of_every_kind_are_answered(client: httpx.Client, data: bytes, kind: str) -> None:
    response = client.post("/v1/chat/completions", content=data, headers={"content-type": kind} if kind else {})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", PATHS[:4])
def test_a_number_of_more_than_64_bits_is_answered_in_every_field(client: httpx.Client, path: str) -> None:
    schema = client.get("/openapi.json").json()
    body = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    names = schema["components"]["schemas"][body.rpartition("/")[2]]["properties"]
    asked = {"prompt": "fox", "messages": [{"role": "user", "content": "fox"}], "tokens": [1], "max_tokens": 2}
    whole = {name: value for name, value in asked.items() if name in names}
    assert len(names) > 1
    for name in names:
        for value in (2**70, [2**70], {"1": 2**70}, {str(2**70): 1}, {"steps": 2**70}):
            response = client.post(path, json={**whole, name: value})
            assert response.status_code in EXPECTED, (name, value, response.text)


def test_what_the_schema_allows_is_never_a_server_error(short: Server) -> None:
    operations = [each.ok() for each in schemathesis.openapi.from_url(f"{short.url}/openapi.json").get_all_operations()]
    assert len(operations) > 10
    for operation in operations:

        @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def call(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=[schemathesis.checks.not_a_server_error], timeout=60)

        call()
