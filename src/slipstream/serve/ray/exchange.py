"""One request and its answer as an ASGI application sees them, without a socket."""

import asyncio
import traceback
from collections.abc import AsyncIterator

from starlette.types import ASGIApp, Message

from slipstream.serve.ray.call import Call


async def exchange(app: ASGIApp, call: Call) -> AsyncIterator[list[Message]]:
    """What an application answers, as it comes; whatever came since the last look together.

    Ending the iteration early is a client's hanging up.
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    gone, body = asyncio.Event(), [call.body]

    async def receive() -> Message:
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    task = asyncio.ensure_future(app(dict(call.scope), receive, messages.put))
    task.add_done_callback(lambda _: messages.put_nowait(None))
    try:
        ended = False
        while not ended:
            found = await _take(messages)
            ended = found[-1] is None
            if batch := [each for each in found if each is not None]:
                yield batch
    finally:
        gone.set()
        await asyncio.wait([task])
        if (error := task.exception()) is not None:  # it has been answered as an internal error
            traceback.print_exception(error)


async def _take(messages: "asyncio.Queue[Message | None]") -> list[Message | None]:
    """Everything that is there, which is at least one; None comes last."""
    found = [await messages.get()]
    while not messages.empty():
        found.append(messages.get_nowait())
    return found
