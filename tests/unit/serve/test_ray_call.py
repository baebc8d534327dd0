"""What surrounds an answer under Ray Serve and needs no Ray: the router's text, the passage, the joint metrics."""

import asyncio
import json

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from slipstream.serve.ray.call import ROUTED_CHARS, make_call, routing_text
from slipstream.serve.ray.exchange import exchange
from slipstream.serve.ray.metrics import merged

SCOPE = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "extensions": {"not": "carried"}}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"prompt": "the quick"}, "the quick"),
        ({"prompt": ["the ", "quick"]}, "the quick"),
        ({"prompt": [5, 17]}, "5 17 "),
        ({"prompt": [[5], [17]]}, "5 17 "),
        ({"messages": [{"role": "system", "content": "Be brief. "}, {"content": "Hi"}]}, "Be brief. Hi"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}, "Hi"),
        ({"messages": [{"role": "assistant", "content": None}]}, ""),
        ({"messages": 3.5}, ""),
        ({"prompt": "x" * (ROUTED_CHARS + 9)}, "x" * ROUTED_CHARS),
        ({}, ""),
        ([], ""),
    ],
)
def test_the_router_sees_what_the_model_reads(body, text):
    assert routing_text(json.dumps(body).encode()) == text


@pytest.mark.parametrize("body", [b"", b"no json", b"\xff\xfe\x00", b'{"prompt": ' + b"[" * 100_000])
def test_what_cannot_be_read_goes_to_any_replica(body):
    assert routing_text(body) == ""


def test_only_questions_are_routed_by_their_text():
    body = b'{"prompt": "the quick"}'
    assert make_call(SCOPE, body).prompt == "the quick"
    assert make_call({**SCOPE, "path": "/tokenize"}, body).prompt == ""
    assert "extensions" not in make_call(SCOPE, body).scope


async def _echo(scope, receive, send):
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"!"})


def test_an_answer_passes_whole_and_in_order():
    async def run():
        return [message async for batch in exchange(_echo, make_call(SCOPE, b"abc")) for message in batch]

    start, *parts = asyncio.run(run())
    assert start["status"] == 200
    assert b"".join(each["body"] for each in parts) == b"abc!"


def test_ending_early_is_a_hang_up():
    heard = []

    async def app(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        heard.append(await receive())

    async def run():
        answer = exchange(app, make_call(SCOPE, b""))
        await anext(answer)
        assert heard == []
        await answer.aclose()

    asyncio.run(run())
    assert heard == [{"type": "http.disconnect"}]


def test_a_bug_ends_the_answer_and_is_logged(capsys):
    async def app(scope, receive, send):
        await _echo(scope, receive, send)
        raise KeyError("bug")

    async def run():
        return [message async for batch in exchange(app, make_call(SCOPE, b"")) for message in batch]

    assert len(asyncio.run(run())) == 3
    assert "KeyError: 'bug'" in capsys.readouterr().err


def _exposition(count: int) -> bytes:
    registry = CollectorRegistry()
    Counter("slipstream_answers", "Answers.", ["finish_reason"], registry=registry).labels("stop").inc(count)
    Histogram("slipstream_time", "Time.", buckets=(1.0,), registry=registry).observe(count)
    return generate_latest(registry)


def test_metrics_of_all_replicas_are_one_text_with_a_name_at_each_sample():
    families = list(text_string_to_metric_families(merged({"a": _exposition(2), "b": _exposition(3)}).decode()))
    assert len({family.name for family in families}) == len(families)
    samples = {
        (sample.name, sample.labels["replica"]): sample.value for family in families for sample in family.samples
    }
    assert samples["slipstream_answers_total", "a"] == 2
    assert samples["slipstream_answers_total", "b"] == 3
    assert samples["slipstream_time_sum", "b"] == 3
    assert {family.type for family in families if family.name == "slipstream_time"} == {"histogram"}


def test_without_replicas_there_are_no_samples():
    assert merged({}) == b""
