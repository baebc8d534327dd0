"""A long day in short: requests of every kind together. Nothing leaks, and no answer depends on its companions."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.patience import patience
from tests.served import Server, model_arguments, serving
from tests.unit.cli.world import PROMPTS, World

CONCURRENCY = 64
MIB = 1 << 20
KINDS = ("plain", "stream", "chat", "stop", "several", "grammar", "long", "cancel", "hang up", "invalid")
WEIGHTS = (20, 20, 15, 10, 8, 5, 7, 5, 5, 5)
# oneDNN keeps what it has compiled for up to a thousand shapes, and glibc what was freed: neither is a leak, and both
# would hide one.
FRUGAL = {
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
    "LRU_CACHE_CAPACITY": "16",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_MMAP_THRESHOLD_": "65536",
}
INVALID: tuple[dict[str, Any], ...] = ({"temperature": -1}, {"prompt": []}, {"unheard": 1}, {"max_tokens": 0}, {"n": 0})


@pytest.fixture(scope="module")
def busy(http_world: World) -> Iterator[Server]:
    arguments = model_arguments(http_world.model, http_world.draft, "--steps", "3", "--served-model-name", "tiny")
    with serving(*arguments, "--max-requests", "512", environment=FRUGAL) as found:
        yield found


def wanted(kind: str, place: int) -> tuple[str, dict[str, Any]]:
    """The path and body of a request; few enough of each kind to know every answer."""
    body: dict[str, Any] = {"prompt": PROMPTS[place % 4], "max_tokens": 8 + 8 * (place % 4), "temperature": 0}
    match kind:
        case "chat":
            del body["prompt"]
            return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": PROMPTS[place % 4]}]}
        case "stop":
            body["stop"] = ["e", "1", " "][place % 3]
        case "several":
            body |= {"n": 3, "temperature": 1.0, "seed": place % 4}
        case "grammar":
            body |= {"guided_choice": ["red", "green", "blue"], "temperature": 1.0, "seed": place % 4}
        case "long":
            body["prompt"] = [5 + place % 4, *range(10, 200)]
        case _:
            pass
    return "/v1/completions", body


def key_of(path: str, body: dict[str, Any]) -> str:
    return json.dumps([path, body], sort_keys=True)


def shown(choice: dict[str, Any]) -> tuple[str, str]:
    """What of a choice must not depend on its companions."""
    return choice["text"] if "text" in choice else choice["message"]["content"], choice["finish_reason"]


class Soak:
    """The client's side."""

    def __init__(self, client: httpx.AsyncClient, expected: dict[str, Any], seed: int) -> None:
        self.client, self.expected, self.random = client, expected, random.Random(seed)
        self.done: Counter[str] = Counter()

    async def run(self, count: int) -> None:
        """So many requests, 64 at a time."""
        todo = [(self.random.choices(KINDS, WEIGHTS)[0], self.random.randrange(12)) for _ in range(count)]
        room = asyncio.Semaphore(CONCURRENCY)

        async def one(kind: str, place: int) -> None:
            async with room:
                await self.ask(kind, place)
                self.done[kind] += 1

        await asyncio.gather(*(one(kind, place) for kind, place in todo))

    async def ask(self, kind: str, place: int) -> None:
        path, body = wanted(kind, place)
        match kind:
            case "invalid":
                response = await self.client.post(path, json={**body, **INVALID[place % len(INVALID)]})
                assert response.status_code == 400
            case "cancel":
                await self.leave(path, {**body, "stream": True, "max_tokens": 200, "ignore_eos": True})
            case "hang up":
                longest = {**body, "max_tokens": 200, "n": 4, "ignore_eos": True}
                with pytest.raises(httpx.TimeoutException):
                    await self.client.post(path, json=longest, timeout=0.05)
            case "stream":
                await self.stream(path, body)
            case _:
                response = await self.client.post(path, json=body)
                assert response.status_code == 200, response.text
                found = [shown(choice) for choice in response.json()["choices"]]
                assert found == self.expected[key_of(path, body)], (kind, body)

    async def stream(self, path: str, body: dict[str, Any]) -> None:
        text, reason, last = "", None, ""
        async with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            async for line in response.aiter_lines():
                last = line or last
                if line.startswith("data: {"):
                    (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                    text, reason = text + choice["text"], choice["finish_reason"]
        assert last == "data: [DONE]"
        assert [(text, reason)] == self.expected[key_of(path, body)]

    async def leave(self, path: str, body: dict[str, Any]) -> None:
        """Read a few events, then go."""
        async with self.client.stream("POST", path, json=body) as response:
            assert response.status_code == 200
            left = self.random.randrange(1, 6)
            async for _ in response.aiter_lines():
                left -= 1
                if not left:
                    return


def alone(server: Server) -> dict[str, Any]:
    """Every answer that is compared, by itself."""
    expected: dict[str, Any] = {}
    with server.http as client:
        for kind in ("plain", "chat", "stop", "several", "grammar", "long"):
            for place in range(12):
                path, body = wanted(kind, place)
                if (key := key_of(path, body)) not in expected:
                    response = client.post(path, json=body)
                    assert response.status_code == 200, response.text
                    expected[key] = [shown(choice) for choice in response.json()["choices"]]
    return expected


def memory(pid: int) -> int:
    """Resident bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


async def soak(server: Server, expected: dict[str, Any], count: int, seed: int) -> Counter[str]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=CONCURRENCY)
    async with httpx.AsyncClient(base_url=server.url, timeout=patience(120), limits=limits) as client:
        found = Soak(client, expected, seed)
        await found.run(count)
        return found.done


def test_two_hundred_mixed_requests_answer_as_each_would_alone(busy: Server) -> None:
    done = asyncio.run(soak(busy, alone(busy), 200, seed=1))
    assert done.total() == 200
    assert set(done) == set(KINDS)
    busy.wait_until(busy.idle, 30)
    assert busy.number("slipstream_kv_usage_ratio") == 0


@pytest.mark.slow
def test_two_thousand_mixed_requests_leave_memory_as_it_was(busy: Server) -> None:
    expected = alone(busy)
    pids = {"http": busy.process.pid, "engine": busy.engine_pid}
    asyncio.run(soak(busy, expected, 600, seed=2))  # the KV pool and the prefix cache fill
    busy.wait_until(busy.idle, 30)
    before = {name: memory(pid) for name, pid in pids.items()}
    done = asyncio.run(soak(busy, expected, 2000, seed=3))
    busy.wait_until(busy.idle, 30)
    grown = {name: (memory(pid) - before[name]) / MIB for name, pid in pids.items()}
    print(f"{done.total()} requests: {dict(done)}; memory grew by MiB {grown} of {before}")
    assert all(growth < 8 for growth in grown.values())
    assert busy.number("slipstream_kv_usage_ratio") == 0
    assert busy.process.poll() is None
