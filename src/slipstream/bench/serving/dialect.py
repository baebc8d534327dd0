"""What kind of server answers, and how it is asked: which fields beyond OpenAI's it takes."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from slipstream.bench.serving.answer import Failure, read_answer
from slipstream.bench.serving.connections import Broken, Connections, Unreachable
from slipstream.bench.serving.prompts import Ask, Endpoint

LOOK_S = 30.0  # for questions that are no load


class Kind(Enum):
    """Whose server; OpenAI's own and all others are OTHER."""

    SLIPSTREAM = "slipstream"
    VLLM = "vllm"
    SGLANG = "sglang"
    OTHER = "openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Who answers."""

    kind: Kind
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How every answer is to be; None is left to the server."""

    endpoint: Endpoint
    max_tokens: int
    temperature: float
    seed: int
    ignore_eos: bool | None  # None: where the server is known to take it
    extra: Mapping[str, Any]  # fields of every body, as they are

    def ignores_eos(self, kind: Kind) -> bool:
        """Whether answers go on to max_tokens."""
        return kind is not Kind.OTHER if self.ignore_eos is None else self.ignore_eos


async def look(connections: Connections, path: str) -> tuple[int, bytes]:
    """GET a path; status and body.

    Raises:
        Unreachable, Broken, TimeoutError: there is no response.
    """
    async with asyncio.timeout(LOOK_S):
        response = await connections.ask("GET", path)
    return response.status, response.body


async def meet(connections: Connections, model: str | None) -> Server:
    """Who the server is, and which model is asked for: the first that it lists, unless one was named.

    Raises:
        ValueError: it cannot be reached, refuses the key, or names no model; one sentence.
    """
    host = connections.name
    try:
        async with asyncio.timeout(LOOK_S):
            response = await connections.ask("GET", "/v1/models")
    except Unreachable as error:
        raise ValueError(f"{error}; start the server, or give another --url") from None
    except Broken as error:
        raise ValueError(f"{host} does not speak HTTP as it should ({error}); check --url") from None
    except TimeoutError:
        raise ValueError(f"{host} did not answer /v1/models within {LOOK_S:g} s; is the server well?") from None
    if response.status in (401, 403):
        refused = read_answer(response)
        assert isinstance(refused, Failure), "it is no answer"
        raise ValueError(f"{host} wants another key ({refused.sentence}); pass --api-key")
    cards = _cards(response.body) if response.status == 200 else []
    owners = [str(card.get("owned_by", "")).lower() for card in cards]
    kind = next((each for each in Kind if each.value in owners and each is not Kind.OTHER), Kind.OTHER)
    names = [str(card["id"]) for card in cards if card.get("id")]
    if model is None and not names:
        raise ValueError(f"{host} lists no models ({response.status} from /v1/models); pass --model, or check --url")
    return Server(kind=kind, model=model or names[0])


def body_of(server: Server, manner: Manner, ask: Ask, place: int) -> bytes:
    """The request of the prompt at a place."""
    chat, kind = manner.endpoint is Endpoint.CHAT, server.kind
    body: dict[str, Any] = {
        "model": server.model,
        **ask,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens" if chat else "max_tokens": manner.max_tokens,
        "temperature": manner.temperature,
    }
    if manner.temperature > 0:
        body["seed"] = manner.seed + place
    if manner.ignores_eos(kind):
        body["ignore_eos"] = True
    if kind is not Kind.OTHER:
        body["stream_options"]["continuous_usage_stats"] = True  # tokens of each chunk
    if kind is Kind.SLIPSTREAM:
        body["speculation"] = {"metrics": True}
    return json.dumps({**body, **manner.extra}).encode()


def _cards(body: bytes) -> list[dict[str, Any]]:
    try:
        found = json.loads(body)
    except ValueError:
        return []
    cards = found.get("data") if isinstance(found, dict) else None
    return [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
