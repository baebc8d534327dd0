"""The front: takes HTTP requests in, has Ray Serve's router choose a replica, and passes on what that answers.

Keys and the size of bodies are looked at here, before a replica is troubled.
"""

import asyncio
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.serve.http import errors
from slipstream.serve.http.errors import ApiError, unavailable
from slipstream.serve.http.metrics import CONTENT_TYPE
from slipstream.serve.http.middleware import wrap
from slipstream.serve.http.reply import error_event, hung_up
from slipstream.serve.http.settings import HttpSettings
from slipstream.serve.ray.call import Call, make_call
from slipstream.serve.ray.metrics import merged
from slipstream.serve.ray.replica import ReplicaState

ASK_S = 5.0  # for replicas to say how they are
TRIES = 3  # replicas that may die under a request
SLACK_S = 5.0  # beyond a request's time, within which its replica says that it is over


class Front:
    """Ray Serve hands it requests."""

    def __init__(self, engines: DeploymentHandle, http: HttpSettings) -> None:
        self._app = make_front(engines, http)

    async def __call__(self, request: Request) -> Response:
        return Passed(self._app)


class Passed(Response):
    """Whatever an application answers."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"  # without Ray Serve's route_prefix
        await self._app({**scope, "path": path, "root_path": ""}, receive, send)


def make_front(engines: DeploymentHandle, http: HttpSettings) -> ASGIApp:
    """An ASGI application before the replicas."""

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        count = sum(each.ready for each in await states(engines))
        status = "ready" if count else "loading"
        return JSONResponse({"status": status, "replicas": count}, status_code=200 if count else 503)

    async def metrics(request: Request) -> Response:
        found = {each.name: each.metrics for each in await states(engines)}
        return Response(merged(found), media_type=CONTENT_TYPE)

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics),
            Mount("/", Relay(engines, limit_s=http.request_timeout_s + SLACK_S)),
        ],
        exception_handlers={ApiError: errors.on_api_error, HTTPException: errors.on_http_error},
    )
    return wrap(app, keys=http.api_keys, max_body_bytes=http.max_body_bytes)


async def states(engines: DeploymentHandle) -> list[ReplicaState]:
    """Of the replicas that run and answer."""
    try:
        found = await engines.broadcast("state").results_async(timeout_s=ASK_S, return_exceptions=True)
    except (DeploymentUnavailableError, TimeoutError):
        return []
    return [each for each in found if isinstance(each, ReplicaState)]


class Relay:
    """Has a replica answer; a client that hangs up here hangs up there."""

    def __init__(self, engines: DeploymentHandle, *, limit_s: float) -> None:
        self._answer = engines.options(stream=True).answer
        self._limit_s = limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None:
            return
        gone, passage = asyncio.ensure_future(hung_up(receive)), Passage(send)
        try:
            async with asyncio.timeout(self._limit_s):
                await self._relay(make_call(scope, body), passage, gone)
        except (TimeoutError, RayServeException, RayError) as error:
            if gone.done():
                return  # there is nobody to tell
            if not passage.opened:
                raise refusal(error) from None
            await send({"type": "http.response.body", "body": error_event(refusal(error))})
        finally:
            gone.cancel()

    async def _relay(self, call: Call, passage: "Passage", gone: "asyncio.Future[None]") -> None:
        """Ask again when a replica dies before it has said anything."""
        for tries_left in reversed(range(TRIES)):
            # The router looks at positional arguments; without any it balances load alone.
            stream: Any = self._answer.remote(call) if call.prompt else self._answer.remote(call=call)
            gone.add_done_callback(partial(_cancel, stream))
            try:
                async for messages in stream:
                    await passage.send(messages)
                return
            except RayActorError:
                if passage.opened or not tries_left:
                    raise


class Passage:
    """What has reached the client."""

    def __init__(self, send: Send) -> None:
        self._send, self.opened = send, False

    async def send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.opened = True
            await self._send(message)


def _cancel(stream: Any, _: object) -> None:
    stream.cancel()


def refusal(error: Exception) -> ApiError:
    """What a client is told where Ray Serve brings no answer."""
    match error:
        case TimeoutError():
            return ApiError(504, "not done within the server's time for a request", code="timeout")
        case BackPressureError():
            words = "all replicas have as many requests as they take; try again in a moment"
            return ApiError(429, words, code="too_many_requests")
        case DeploymentUnavailableError() | RayActorError():
            return unavailable("the replica that was to answer has ended; try again in a moment", code="engine_dead")
        case _:
            traceback.print_exception(error)
            return ApiError(500, "internal error", code="internal_error")


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None if the client has gone."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)
