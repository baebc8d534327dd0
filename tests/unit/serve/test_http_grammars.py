"""Forms that answers must keep, and calls that they must make, through the openai client and a template with tools."""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.served import Server, chunks_of, model_arguments, serving
from tests.templates import HERMES
from tests.unit.cli.world import World

ASK = [{"role": "user", "content": "the fox"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
CITY["additionalProperties"] = False
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]


class Choice(BaseModel):
    colour: Literal["red", "green"]
    sure: bool


@pytest.fixture(scope="module")
def tooled(http_world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("template") / "hermes.jinja"
    path.write_text(HERMES)
    arguments = model_arguments(http_world.model, http_world.draft, "--served-model-name", "tiny")
    with serving(*arguments, "--chat-template", str(path)) as found:
        yield found


@pytest.fixture
def client(tooled: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tooled.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_an_answer_parses_into_the_clients_own_class(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model="tiny", messages=ASK, response_format=Choice, seed=3)
    assert isinstance(answer.choices[0].message.parsed, Choice)
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[a-f]{3}-[0-9]{2}"}, r"[a-f]{3}-[0-9]{2}"),
        ({"structured_outputs": {"regex": "(yes|no)!"}}, r"(yes|no)!"),
        ({"guided_choice": ["one", "two"]}, r"one|two"),
        ({"structured_outputs": {"choice": ["one", "two"]}}, r"one|two"),
        ({"guided_grammar": 'start: "a" "b"~2'}, r"abb"),
        ({"guided_json": CITY}, r'\{\s*"city"\s*:\s*"(Oslo|Rome)"\s*\}'),
        ({"guided_json": json.dumps(CITY)}, r'\{\s*"city"\s*:\s*"(Oslo|Rome)"\s*\}'),
    ],
)
def test_vllms_fields_keep_an_answer_in_form(tooled: Server, fields: dict[str, Any], pattern: str) -> None:
    for seed in range(3):
        body = {"prompt": "the fox", "max_tokens": 100, "seed": seed, **fields}
        choice = tooled.post("/v1/completions", body).json()["choices"][0]
        assert re.fullmatch(pattern, choice["text"]), choice
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}}, None),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"guided_regex": "("}, None),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_grammar": "start: unheard"}, None),
    ],
)
def test_a_form_that_means_nothing_is_refused(tooled: Server, fields: dict[str, Any], param: str | None) -> None:
    response = tooled.post("/v1/completions", {"prompt": "the fox", "max_tokens": 8, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_named_function_is_called(client: openai.OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = client.chat.completions.create(model="tiny", messages=ASK, tools=TOOLS, tool_choice=choice)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
    assert answer.choices[0].message.content is None
    assert answer.choices[0].finish_reason == "stop"


def test_some_function_is_called_where_one_is_required(client: openai.OpenAI, tooled: Server) -> None:
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "seed": 1}
    answer = client.chat.completions.create(model="tiny", **body)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name in ("weather", "now")
    assert call.id.startswith("call_")
    assert answer.choices[0].finish_reason == "tool_calls"
    chunks = chunks_of(tooled.post("/v1/chat/completions", {**body, "stream": True}))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    (streamed,) = [each for delta in deltas for each in delta.get("tool_calls", [])]
    assert streamed["index"] == 0
    assert streamed["function"] == {"name": call.function.name, "arguments": call.function.arguments}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_conversation_with_calls_and_results_is_rendered(tooled: Server) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "call_1", "content": "rain"})
    ids = tooled.post("/tokenize", {"messages": messages, "tools": TOOLS}).json()["tokens"]
    text = tooled.post("/detokenize", {"tokens": ids}).json()["prompt"]
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>' in text
    assert "rain" in text
    response = tooled.post("/v1/chat/completions", {"messages": messages, "tools": TOOLS, "max_tokens": 2})
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
    ],
)
def test_tools_that_cannot_be_called_are_refused(tooled: Server, change: dict[str, Any], param: str) -> None:
    body = {"messages": ASK, "max_tokens": 4, "tools": TOOLS, **change}
    response = tooled.post("/v1/chat/completions", body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_thought_that_the_template_opens_is_split_off(tooled: Server) -> None:
    body = {"messages": ASK, "max_tokens": 12, "ignore_eos": True, "temperature": 0}
    body["chat_template_kwargs"] = {"enable_thinking": True}
    message = tooled.post("/v1/chat/completions", body).json()["choices"][0]["message"]
    assert message["reasoning_content"]  # this model never stops thinking
    assert message["content"] == ""
    chunks = chunks_of(tooled.post("/v1/chat/completions", {**body, "stream": True}))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert (
        "".join(delta.get("reasoning_content", "") for delta in deltas).strip() == message["reasoning_content"].strip()
    )
    together = tooled.post("/v1/chat/completions", {**body, "separate_reasoning": False}).json()
    assert "reasoning_content" not in together["choices"][0]["message"]


def test_a_template_runs_in_its_sandbox(http_world: World, tmp_path: Any) -> None:
    path = tmp_path / "evil.jinja"
    path.write_text("{{ messages.__class__.__mro__[1].__subclasses__() }}{{ cycler.__init__.__globals__ }}")
    arguments = model_arguments(http_world.model, None, "--chat-template", str(path))
    with serving(*arguments) as evil:
        response = evil.post("/v1/chat/completions", {"messages": ASK})
        assert response.status_code == 400
        assert "__class__" in response.json()["error"]["message"]
        assert evil.post("/v1/completions", {"prompt": "the fox", "max_tokens": 2}).status_code == 200
