"""Measure one server under each of several levels of load: meet it, warm it up, press it, read its counters."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from slipstream.bench.serving.acceptance import accepted_of, read_samples
from slipstream.bench.serving.answer import Failure, Reason
from slipstream.bench.serving.connections import Broken, Connections, Unreachable
from slipstream.bench.serving.dialect import Kind, Manner, Server, body_of, look, meet
from slipstream.bench.serving.load import Level, Outcome, Run, press
from slipstream.bench.serving.prompts import Ask
from slipstream.bench.serving.rows import Row, as_row, details
from slipstream.telemetry.clock import Clock

SETTLE_S = 0.3  # a server's counters may lag behind its answers
REMEDIES = {
    Reason.KEY: "pass --api-key",
    Reason.NOT_FOUND: "check --model, --endpoint and --url",
    Reason.TIMEOUT: "raise --timeout",
    Reason.REFUSED: "leave out what the server does not take (--no-ignore-eos, --endpoint, --extra-body)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One level and what is asked under it."""

    level: Level
    warmup: tuple[Ask, ...]  # asked first, and not counted
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a server is asked, and how its numbers are taken."""

    url: str
    key: str | None
    model: str | None  # None = the first that the server lists
    manner: Manner
    stages: tuple[Stage, ...]
    goals: Mapping[str, float]  # of goodput, ms
    detailed: bool  # whether rows hold each request's own numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row, and why requests failed."""

    row: Row
    failures: tuple[Failure, ...]


Told = Callable[[Stage, Outcome], None]


async def measure(work: Work, clock: Clock, *, on_end: Told = lambda stage, outcome: None) -> list[Measured]:
    """One after the other; on_end hears of each request as it ends.

    Raises:
        ValueError: the server cannot be asked at all, or a warm-up request failed; one sentence.
    """
    from slipstream.bench.serving.client import connected  # noqa: PLC0415 - needs the extra

    async with connected(work.url, work.key, clock) as connections:
        server = await meet(connections, work.model)
        return [await _stage(connections, server, work, stage, on_end) for stage in work.stages]


async def _stage(connections: Connections, server: Server, work: Work, stage: Stage, on_end: Told) -> Measured:
    path, manner = work.manner.endpoint.path, work.manner
    first = await press(connections, path, _bodies(server, manner, stage.warmup), stage.level)
    if first.failures:
        raise ValueError(_refusal(first.failures[0]))
    before = await _samples(connections)
    bodies = _bodies(server, manner, stage.asks)
    run = await press(connections, path, bodies, stage.level, on_end=lambda outcome: on_end(stage, outcome))
    await asyncio.sleep(SETTLE_S)
    after = await _samples(connections)
    info = await _body(connections, "/server_info") if server.kind is Kind.SGLANG else b""
    accepted = accepted_of(run.answers, before, after, info)
    row = {**_settings(server, work, stage), **as_row(run, accepted, work.goals), **_more(run, work)}
    return Measured(row=row, failures=tuple(run.failures))


def _settings(server: Server, work: Work, stage: Stage) -> dict[str, Any]:
    level, manner = stage.level, work.manner
    return {
        "backend": server.kind.value,
        "url": work.url,
        "endpoint": manner.endpoint.value,
        "model_id": server.model,
        "tokenizer_id": None,
        "num_prompts": len(stage.asks),
        "max_tokens": manner.max_tokens,
        "ignore_eos": manner.ignores_eos(server.kind),
        "temperature": manner.temperature,
        "seed": manner.seed,
        "extra_body": dict(manner.extra),
        "request_rate": "inf" if level.request_rate == float("inf") else level.request_rate,
        "burstiness": 1.0,
        "max_concurrency": level.max_concurrency,
        "warmup": len(stage.warmup),
        "timeout_s": level.timeout_s,
    }


def _more(run: Run, work: Work) -> Row:
    return details(run) if work.detailed else {}


def _bodies(server: Server, manner: Manner, asks: Sequence[Ask]) -> list[bytes]:
    return [body_of(server, manner, ask, place) for place, ask in enumerate(asks)]


def _refusal(failure: Failure) -> str:
    remedy = REMEDIES.get(failure.reason, "see what the server says")
    return f"nothing was measured, for a warm-up request failed: {failure.reason.value} ({failure.sentence}); {remedy}"


async def _samples(connections: Connections) -> dict[str, float]:
    return read_samples((await _body(connections, "/metrics")).decode(errors="replace"))


async def _body(connections: Connections, path: str) -> bytes:
    """What a path says; nothing where there is no such path."""
    with suppress(Unreachable, Broken, TimeoutError):
        status, body = await look(connections, path)
        return body if status == 200 else b""
    return b""
