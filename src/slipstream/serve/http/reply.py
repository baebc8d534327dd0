"""Answer one HTTP request: submit its job, and write what comes, whole or as server-sent events.

A client that hangs up, a time-out or an error ends the block in which the job is submitted, which aborts whatever of
it still runs.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipstream.serve.http.client import EngineClient
from slipstream.serve.http.errors import ApiError
from slipstream.serve.http.job import Choice, Job, speculation_of, usage_of
from slipstream.serve.http.limits import Limits
from slipstream.serve.http.log import RequestLog
from slipstream.serve.http.metrics import Metrics
from slipstream.serve.http.settings import HttpSettings
from slipstream.serve.http.shapes import Shape
from slipstream.serve.http.texts import Texts, aside
from slipstream.serve.http.timing import Timing
from slipstream.serve.messages import Piece, TokenChances
from slipstream.telemetry.clock import Clock

DONE = b"data: [DONE]\n\n"
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What all endpoints share."""

    settings: HttpSettings
    client: EngineClient
    texts: Texts
    limits: Limits
    metrics: Metrics
    log: RequestLog
    clock: Clock
    started: int  # seconds since 1970


class Reply(Response):
    """Runs when the answer is to be sent, because only then can a client's hanging up be heard."""

    def __init__(self, house: House, shape: Shape, make_job: Callable[[], Awaitable[Job]]) -> None:
        super().__init__()
        self._house, self._shape, self._make_job = house, shape, make_job
        self._timing = Timing(house.metrics, house.clock)
        self._opened = False  # whether the headers of a stream are out
        self.status_code, self._job, self._choices = 0, None, list[Choice]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._house.metrics.open_requests.track_inprogress():
            await self._race(scope, receive, send)

    async def _race(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client hangs up first."""
        work = asyncio.ensure_future(self._answer(scope, receive, send))
        gone = asyncio.ensure_future(hung_up(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, gone):
                task.cancel()
            results = await asyncio.gather(work, gone, return_exceptions=True)
            self._note(scope["path"])
        if isinstance(results[0], Exception):
            raise results[0]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        house = self._house
        try:
            async with asyncio.timeout(house.settings.request_timeout_s):
                house.client.check_ready()
                house.limits.check(1)  # before a prompt is looked at, which may take a while
                self._job = job = await self._make_job()
                with house.limits.room_for(job.num_answers):
                    await self._run(job, send)
        except TimeoutError:
            seconds = house.settings.request_timeout_s
            await self._fail(ApiError(504, f"not done within {seconds:g} s", code="timeout"), scope, receive, send)
        except ApiError as error:
            await self._fail(error, scope, receive, send)

    async def _run(self, job: Job, send: Send) -> None:
        house = self._house
        self._choices = [Choice.of(job, index, house.texts.tokenizer) for index in range(job.num_answers)]
        with house.client.submitted(job.prompts, job.params, steps=job.steps, priority=job.priority) as (box, first):
            early = await _accepted(box.take, len(job.prompts))
            pieces = _pieces(early, box.take, job.num_answers)
            if job.stream:
                await self._stream(job, pieces, first, send)
                return
            async for piece in pieces:
                choice = self._choices[piece.answer - first]
                self._timing.saw(choice, choice.take(piece))
        await self._send_whole(job, send)

    # ------------------------------------------------------------------ whole

    async def _send_whole(self, job: Job, send: Send) -> None:
        num_scored = sum(num_chances(choice.prompt) for choice in self._choices)
        body = {
            "id": job.id,
            "object": self._shape.whole_object,
            "created": job.created,
            "model": job.model,
            "choices": await aside(num_scored, lambda: [self._shape.whole(job, each) for each in self._choices]),
            "usage": usage_of(job, self._choices),
            **self._metrics(job),
        }
        self.status_code = 200
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": ENCODER.encode(body)})

    # ------------------------------------------------------------------ streamed

    async def _stream(self, job: Job, pieces: AsyncIterator[Piece], first: int, send: Send) -> None:
        """One event for each forward that brought something, whatever of it can be shown yet."""
        await self._open(send)
        shape, seen = self._shape, set[int]()
        async for piece in pieces:
            choice = self._choices[piece.answer - first]
            events = b""
            if choice.index not in seen:
                seen.add(choice.index)
                opening = await aside(num_chances(piece.prompt), partial(shape.opening, job, choice, piece))
                events += b"" if opening is None else self._event(job, opening)
            fresh = choice.take(piece)
            last = choice.end is not None and len(seen) == job.num_answers and all(each.end for each in self._choices)
            extra = self._metrics(job) if last and not job.include_usage else {}
            events += self._event(job, shape.chunk(choice, fresh), **extra)
            self._timing.saw(choice, fresh)
            await send({"type": "http.response.body", "body": events, "more_body": True})
        if job.include_usage:
            usage = usage_of(job, self._choices)
            event = self._event(job, None, usage=usage, **self._metrics(job))
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": DONE})

    async def _open(self, send: Send) -> None:
        self.status_code, self._opened = 200, True
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})

    def _event(self, job: Job, choice: dict[str, Any] | None, **more: Any) -> bytes:
        if job.continuous_usage:
            more.setdefault("usage", usage_of(job, self._choices))
        elif job.include_usage:
            more.setdefault("usage", None)
        body = {
            "id": job.id,
            "object": self._shape.chunk_object,
            "created": job.created,
            "model": job.model,
            "choices": [] if choice is None else [choice],
            **more,
        }
        return b"data: " + ENCODER.encode(body) + b"\n\n"

    # ------------------------------------------------------------------ both

    async def _fail(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        """An error object: as the answer, or as the last event of a stream."""
        self.status_code = error.status
        if not self._opened:
            await error.response(scope, receive, send)
            return
        await send({"type": "http.response.body", "body": error_event(error)})

    def _metrics(self, job: Job) -> dict[str, Any]:
        if not job.speculation_metrics:
            return {}
        return {"metrics": speculation_of(self._choices, self._house.client.info["speculation"]["steps"])}

    def _note(self, path: str) -> None:
        """Count and log what became of it."""
        house, job, finished = self._house, self._job, all(choice.end for choice in self._choices)
        status = self.status_code if self.status_code and (finished or self.status_code >= 400) else 499
        house.metrics.responses.labels(path, str(status)).inc()
        if job is not None:
            house.metrics.prompt_tokens.inc(sum(map(len, job.prompts)) if status == 200 else 0)
        house.log.answered(path, status=status, seconds=self._timing.seconds, job=job, choices=self._choices)


async def _accepted(take: Callable[[], Awaitable[Any]], num_prompts: int) -> list[Piece]:
    """Wait until every prompt stands in line, which raises if one cannot; pieces of others that came meanwhile."""
    early: list[Piece] = []
    while num_prompts:
        letter = await take()
        if isinstance(letter, Piece):
            early.append(letter)
        else:
            num_prompts -= 1
    return early


async def _pieces(early: list[Piece], take: Callable[[], Awaitable[Any]], num_answers: int) -> AsyncIterator[Piece]:
    """What the engine says, until every answer has ended."""
    waiting = deque(early)
    while num_answers:
        piece = waiting.popleft() if waiting else await take()
        num_answers -= piece.end is not None
        yield piece


def error_event(error: ApiError) -> bytes:
    """The last event of a stream that went wrong."""
    return b"data: " + ENCODER.encode(error.body) + b"\n\n"


def num_chances(found: list[TokenChances] | None) -> int:
    """Of a prompt's log-probabilities."""
    return sum(1 + len(each.top) for each in found or ())


async def hung_up(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())
