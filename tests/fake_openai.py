"""A server that speaks as OpenAI-compatible ones do, or as badly as a test asks; raw sockets, no model."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

NO_LIMIT = 10**9


@dataclass(slots=True, kw_only=True)
class Fake:
    """How it is to answer, and what it was asked."""

    owned_by: str = "vllm"
    model: str | None = "fake-7b"  # None: it lists none
    tokens: int = 10  # of each answer: one alone, then three a chunk
    delay_s: float = 0.0  # before each chunk
    key: str | None = None
    status: int = 200  # of answers
    said: str = ""  # with another status
    usage: bool = True
    done: bool = True  # whether a stream ends with [DONE]
    cut_after: int = NO_LIMIT  # chunks, then it hangs up
    error_after: int = NO_LIMIT  # chunks, then an event says why there are no more
    fails: Callable[[int], bool] = lambda number: False  # which requests, from 0, get a 500
    last: dict[str, Any] = field(default_factory=dict)  # fields of the last chunk
    metrics: Callable[[int], str] | None = None  # by the number of answers so far
    info: dict[str, Any] | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)  # of POSTs
    answered: int = 0
    open: int = 0
    most_open: int = 0
    connections: int = 0


Reply = tuple[int, bytes]


class _Serving:
    def __init__(self, fake: Fake) -> None:
        self.fake = fake

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.fake.connections += 1
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        method, path, _ = head.split(" ", 2)
        if method == "POST":
            return await self._answer(head, json.loads(body), writer)
        status, content = self._told(path, head)
        return await _whole(writer, status, content)

    def _told(self, path: str, head: str) -> Reply:
        fake = self.fake
        if fake.key is not None and path == "/v1/models" and f"authorization: Bearer {fake.key}\r\n" not in head:
            return 401, json.dumps({"error": {"message": "who are you?"}}).encode()
        if path == "/v1/models":
            data = [] if fake.model is None else [{"id": fake.model, "owned_by": fake.owned_by}]
            return 200, json.dumps({"object": "list", "data": data}).encode()
        if path == "/metrics" and fake.metrics is not None:
            return 200, fake.metrics(fake.answered).encode()
        if path == "/server_info" and fake.info is not None:
            return 200, json.dumps(fake.info).encode()
        return 404, b"{}"

    async def _answer(self, head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        fake, number = self.fake, len(self.fake.bodies)
        fake.bodies.append(body)
        fake.heads.append(head)
        if fake.status != 200:
            return await _whole(writer, fake.status, json.dumps({"error": {"message": fake.said}}).encode())
        if fake.fails(number):
            return await _whole(writer, 500, b"oh no")
        fake.open += 1
        fake.most_open = max(fake.most_open, fake.open)
        try:
            return await self._stream(body, writer)
        finally:
            fake.open -= 1

    async def _stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        fake = self.fake
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        count = 0
        for place, event in enumerate(chunks(fake, body)):
            await asyncio.sleep(fake.delay_s)
            if place == fake.cut_after:
                await writer.drain()
                writer.transport.abort()
                return False
            if place == fake.error_after:
                event = {"error": {"message": "out of memory", "code": 500}}
            await _event(writer, json.dumps(event))
            count += 1
            if "error" in event:
                break
        fake.answered += 1
        if fake.done and count <= fake.error_after:
            await _event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def chunks(fake: Fake, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of an answer: the first token alone, then three at a time, then the usage."""
    chat, sent = "messages" in body, 0
    continuous = body.get("stream_options", {}).get("continuous_usage_stats")

    def usage() -> dict[str, Any]:
        return {"prompt_tokens": 7, "completion_tokens": sent, "total_tokens": 7 + sent}

    if chat:
        yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    while sent < fake.tokens:
        sent = min(fake.tokens, sent + (3 if sent else 1))
        text = "word " * sent
        choice: dict[str, Any] = {"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}
        choice["finish_reason"] = "length" if sent == fake.tokens else None
        yield {"choices": [choice], **({"usage": usage()} if fake.usage and continuous else {})}
    if fake.usage:
        yield {"choices": [], "usage": usage(), **fake.last}


async def _event(writer: asyncio.StreamWriter, data: str) -> None:
    event = f"data: {data}\n\n".encode()
    writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
    await writer.drain()


async def _whole(writer: asyncio.StreamWriter, status: int, content: bytes) -> bool:
    writer.write(f"HTTP/1.1 {status} So\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    return True


@contextmanager
def faking(fake: Fake) -> Iterator[str]:
    """Run it on a thread of its own; its URL."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []
    stop = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(_Serving(fake).connection, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await stop.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
