"""A replica: the HTTP door without a socket before an engine of its own.

The engine is a child as under `slipstream serve`; with tp ranks it spawns the others, all on the replica's GPUs.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

from ray import serve
from starlette.types import Message

from slipstream.serve.http.app import make_app
from slipstream.serve.http.client import Phase
from slipstream.serve.http.house import make_house
from slipstream.serve.http.settings import EngineSettings, HttpSettings
from slipstream.serve.http.texts import Texts
from slipstream.serve.ray.call import Call
from slipstream.serve.ray.exchange import exchange

LOOK_S = 0.05
LAST_WORDS_S = 1.0  # for errors to reach their clients
REPLICA_HEADER = b"x-slipstream-replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """What a replica says of itself."""

    name: str
    ready: bool
    metrics: bytes  # Prometheus text


class EngineReplica:
    """Ray Serve makes it, and counts it as running once its model is loaded and warmed up."""

    async def __init__(self, http: HttpSettings, engine: EngineSettings) -> None:
        """Raises RuntimeError: the engine has ended."""
        self._house = make_house(http, engine, Texts.load(engine))
        self._client = self._house.client
        self._app = make_app(self._house)
        self._name = serve.get_replica_context().replica_id.unique_id
        await self._client.start()
        while self._client.phase is Phase.LOADING:
            await asyncio.sleep(LOOK_S)
        self.check_health()
        self._house.log.event("ready", replica=self._name, engine_pid=self._client.pid)
        self._watch = asyncio.create_task(self._end_with_engine(), name="watch")

    async def answer(self, call: Call) -> AsyncIterator[list[Message]]:
        """The answer as ASGI messages; a header says who gave it.

        If the engine dies before there is any, nothing is said until this process has ended, and the front asks another
        replica.
        """
        begun = False
        async for messages in exchange(self._app, call):
            if not begun and self._client.failure is not None:
                await asyncio.Event().wait()
            begun = True
            for message in messages:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message.get("headers", ()), (REPLICA_HEADER, self._name.encode())]
            yield messages

    async def state(self) -> ReplicaState:
        """Asked of every replica by /ready and /metrics."""
        ready = self._client.phase is Phase.READY
        return ReplicaState(name=self._name, ready=ready, metrics=self._house.metrics.text())

    def check_health(self) -> None:
        """Raises RuntimeError when the engine has ended; Ray Serve then starts another replica."""
        if self._client.failure is not None:
            raise RuntimeError(f"the engine has ended: {self._client.failure.sentence}")

    async def _end_with_engine(self) -> None:
        """A replica without an engine must not draw requests: its end is seen sooner than three failed checks."""
        await self._client.ended.wait()
        await asyncio.sleep(LAST_WORDS_S)
        os._exit(1)

    async def __del__(self) -> None:
        """Ray Serve calls this when the last answer has ended, or its time is up."""
        await self._client.stop()
