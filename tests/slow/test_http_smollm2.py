"""The openai client's calls against SmolLM2-135M and its shipped draft, on a CPU."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from slipstream import LLM, SamplingParams
from tests.served import Server, serving
from tests.templates import HERMES

pytestmark = pytest.mark.slow

NAME = "smollm2-135m"
ASK = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
CITY["additionalProperties"] = False
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": CITY}}]


class Verdict(BaseModel):
    answer: Literal["yes", "no"]
    confidence: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving("--model", NAME, "--device", "cpu", "--max-len", "1024") as found:
        yield found


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_a_chat_says_what_plain_decoding_says_and_faster(client: openai.OpenAI) -> None:
    (expected,) = LLM(NAME, draft=None, device="cpu", max_len=1024).chat(ASK, SamplingParams(max_tokens=48))
    answer = client.chat.completions.create(
        model=NAME, messages=ASK, max_tokens=48, temperature=0, extra_body={"speculation": {"metrics": True}}
    )
    assert answer.choices[0].message.content == expected.text
    assert "Paris" in expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason
    assert answer.metrics["speculative_decoding"]["mean_acceptance_length"] > 1.2


def test_a_stream_says_the_same_in_an_event_a_cycle(client: openai.OpenAI) -> None:
    common = {"model": NAME, "messages": ASK, "max_tokens": 48, "temperature": 0}
    common["extra_body"] = {"speculation": {"metrics": True}}
    whole = client.chat.completions.create(**common)
    chunks = list(client.chat.completions.create(**common, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    cycles = whole.metrics["speculative_decoding"]["num_spec_steps"]
    assert len(chunks) == cycles + 3  # the role, the prompt's forward, usage
    assert chunks[-1].usage == whole.usage


def test_completions_seeds_stops_and_n(client: openai.OpenAI) -> None:
    common = {"model": NAME, "prompt": "The three primary colours are", "max_tokens": 24}
    first = client.completions.create(**common, seed=3, temperature=0.8, n=2)
    again = client.completions.create(**common, seed=3, temperature=0.8, n=2)
    assert [choice.text for choice in first.choices] == [choice.text for choice in again.choices]
    assert first.choices[0].text != first.choices[1].text
    stopped = client.completions.create(**common, temperature=0, stop=[","])
    assert "," not in stopped.choices[0].text
    assert stopped.choices[0].finish_reason == "stop"


def test_logprobs_of_likely_words_are_likely(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME, messages=ASK, max_tokens=8, temperature=0, logprobs=True, top_logprobs=5
    )
    for each in answer.choices[0].logprobs.content:
        assert each.logprob == max(other.logprob for other in each.top_logprobs)
        assert each.logprob <= 0
        assert bytes(each.bytes).decode() == each.token


def test_an_answer_follows_a_json_schema(client: openai.OpenAI) -> None:
    ask = [{"role": "user", "content": "Is water wet? Answer in JSON with answer and confidence."}]
    answer = client.chat.completions.parse(
        model=NAME, messages=ask, response_format=Verdict, max_tokens=64, temperature=0
    )
    assert answer.choices[0].message.parsed.answer in ("yes", "no")
    loose = client.chat.completions.create(
        model=NAME, messages=ask, response_format={"type": "json_object"}, max_tokens=200, temperature=0, seed=1
    )
    if loose.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(loose.choices[0].message.content), dict)


def test_tools_are_called(tmp_path: Path) -> None:
    path = tmp_path / "hermes.jinja"
    path.write_text(HERMES)
    ask = [{"role": "user", "content": "What is the weather in Paris?"}]
    with (
        serving("--model", NAME, "--device", "cpu", "--max-len", "1024", "--chat-template", str(path)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        common = {"model": NAME, "messages": ask, "tools": TOOLS, "max_tokens": 64, "temperature": 0}
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            answer = client.chat.completions.create(**common, tool_choice=choice)
            (call,) = answer.choices[0].message.tool_calls
            assert call.function.name == "weather"
            assert isinstance(json.loads(call.function.arguments)["city"], str)
        free = client.chat.completions.create(**common, tool_choice="auto").choices[0]
        assert free.finish_reason in ("stop", "length", "tool_calls")
        results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        said = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
        after = client.chat.completions.create(
            model=NAME, messages=[*ask, said, *results], tools=TOOLS, max_tokens=24, temperature=0
        )
        assert after.choices[0].message.content
