"""An HTTP request on its way to a replica, with the text by which Ray Serve's prefix-aware router chooses one."""

import json
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

ANSWERS = frozenset({"/v1/completions", "/v1/chat/completions"})
ROUTED_CHARS = 1 << 15  # of a long prompt, its beginning decides
CARRIED = ("type", "asgi", "http_version", "scheme", "method", "path", "root_path", "query_string", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What travels; the router reads `prompt` and nothing else."""

    prompt: str  # empty: any replica will do
    scope: dict[str, Any]  # of ASGI
    body: bytes


def make_call(scope: Scope, body: bytes) -> Call:
    """A call of what came in."""
    prompt = routing_text(body) if scope["path"] in ANSWERS else ""
    return Call(prompt=prompt, scope={name: scope[name] for name in CARRIED if name in scope}, body=body)


def routing_text(body: bytes) -> str:
    """The beginning of what a body asks about, in the order in which the model reads it; empty if it is no request."""
    try:
        found = json.loads(body)
        if not isinstance(found, dict):
            return ""
        return _text(found.get("messages") or found.get("prompt"))[:ROUTED_CHARS]
    except (ValueError, RecursionError):
        return ""


def _text(value: Any) -> str:
    """Texts of messages, parts and prompts one after another; a token id is a word."""
    match value:
        case str():
            return value
        case int():
            return f"{value} "
        case list():
            return "".join(_text(each) for each in value)
        case dict():
            return _text(value.get("content") or value.get("text"))
        case _:
            return ""
