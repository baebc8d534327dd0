"""A chat's messages as templates expect them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.serve.http.errors import bad_request


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Parts of text joined, and the arguments of earlier calls as objects.

    Raises:
        ApiError: a message without role, or with parts that are no text.
    """
    if not messages:
        raise bad_request("messages is empty; give at least one", param="messages")
    return [_plain(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _plain(message: Mapping[str, Any], place: str) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise bad_request(f"{place} has no role", param="messages")
    found = dict(message)
    content = found.get("content")
    if isinstance(content, list):
        found["content"] = "".join(_part(part, place) for part in content)
    elif content is not None and not isinstance(content, str):
        raise bad_request(f"{place}.content is neither text nor a list of parts", param="messages")
    if found.get("tool_calls"):
        found["tool_calls"] = [_call(call, place) for call in _list(found["tool_calls"], place)]
        found["content"] = found.get("content") or ""
    return found


def _part(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(part.get("text"), str):
        raise bad_request(f"{place} has a part of type {kind!r}; only text is supported", param="messages")
    return part["text"]


def _call(call: Any, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise bad_request(f"{place}.tool_calls has a call without function.name", param="messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise bad_request(f"{place}.tool_calls has arguments that are no JSON", param="messages") from None
    return {**call, "function": {**function, "arguments": arguments}}


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise bad_request(f"{place}.tool_calls is no list", param="messages")
    return value
