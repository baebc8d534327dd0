"""Tools: which of them a request offers, and the calls that an answer makes of them, in two styles.

hermes   <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number, after or between text
llama    {"name": ..., "parameters": {...}} as the whole answer, several divided by ";" or newlines
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.serve.http.errors import bad_request
from slipstream.serve.http.held import split_mark
from slipstream.serve.http.settings import ToolStyle

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call; arguments: JSON."""

    name: str
    arguments: str

    def body(self, index: int, *, streamed: bool) -> dict[str, Any]:
        """As OpenAI writes it, with an id of its own."""
        found = {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }
        return {"index": index, **found} if streamed else found


class ToolParser(Protocol):
    """Takes an answer's text piece by piece; gives text and calls as they become certain."""

    def push(self, text: str) -> tuple[str, list[ToolCall]]: ...

    def finish(self) -> tuple[str, list[ToolCall]]: ...


class NoTools:
    """Everything is text."""

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        return text, []

    def finish(self) -> tuple[str, list[ToolCall]]:
        return "", []


class HermesTools:
    """Calls between marks. What is between marks but no call is given as the text that it is."""

    def __init__(self) -> None:
        self._held = ""
        self._blanks = ""  # around calls they belong to nobody
        self._called = False

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        self._held += text
        said, calls = "", []
        while True:
            before, mark, after = self._held.partition(OPEN)
            if not mark:
                certain, self._held = split_mark(self._held, OPEN)
                return said + self._plain(certain), calls
            inside, end, rest = after.partition(CLOSE)
            said, self._held = said + self._plain(before), mark + after
            if not end:
                return said, calls
            call, self._held = parse_call(inside), rest
            if call is None:
                said += self._plain(mark + inside + end)
                continue
            calls.append(call)
            self._blanks, self._called = "", True

    def finish(self) -> tuple[str, list[ToolCall]]:
        """The rest; a last call whose end mark is missing counts if it is whole."""
        held, self._held = self._held, ""
        call = parse_call(held[len(OPEN) :]) if held.startswith(OPEN) else None
        if call is not None:
            return "", [call]
        return self._plain(held) + ("" if self._called else self._blanks), []

    def _plain(self, text: str) -> str:
        """Text, without the blanks at its end until something follows."""
        text = self._blanks + text
        kept = text.rstrip()
        self._blanks = text[len(kept) :]
        return kept.lstrip() if self._called and kept else kept


class LlamaTools:
    """An answer that begins like a call is held back whole; the rest streams."""

    def __init__(self) -> None:
        self._held: str | None = ""  # None: it is text

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        if self._held is None:
            return text, []
        self._held += text
        found = self._held.lstrip()
        if not found or found.startswith("{") or PYTHON_TAG.startswith(found[: len(PYTHON_TAG)]):
            return "", []
        text, self._held = self._held, None
        return text, []

    def finish(self) -> tuple[str, list[ToolCall]]:
        held, self._held = self._held or "", None
        calls = parse_calls(held.strip().removeprefix(PYTHON_TAG))
        return ("", calls) if calls else (held, [])


class ForcedCall:
    """The whole answer is the arguments of one function."""

    def __init__(self, name: str) -> None:
        self._name, self._held = name, ""

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        self._held += text
        return "", []

    def finish(self) -> tuple[str, list[ToolCall]]:
        return "", [ToolCall(name=self._name, arguments=self._held)]


class ForcedCalls:
    """The whole answer is a JSON list of calls; cut off by the length, it is the text that it is."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        self._held += text
        return "", []

    def finish(self) -> tuple[str, list[ToolCall]]:
        try:
            calls = [_call(each) for each in json.loads(self._held)]
        except (ValueError, TypeError, RecursionError):
            return self._held, []
        return "", [call for call in calls if call is not None]


class FirstCall:
    """At most one call, where a client wants no parallel ones."""

    def __init__(self, parser: ToolParser) -> None:
        self._parser, self._done = parser, False

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        return self._first(*self._parser.push(text))

    def finish(self) -> tuple[str, list[ToolCall]]:
        return self._first(*self._parser.finish())

    def _first(self, text: str, calls: list[ToolCall]) -> tuple[str, list[ToolCall]]:
        kept = [] if self._done else calls[:1]
        self._done = self._done or bool(calls)
        return text, kept


def parse_call(text: str) -> ToolCall | None:
    """One call, or None for what is none."""
    try:
        return _call(json.loads(text))
    except (ValueError, RecursionError):
        return None


def parse_calls(text: str) -> list[ToolCall]:
    """All calls of a text that consists of nothing else; none otherwise."""
    decoder, calls, place = json.JSONDecoder(), list[ToolCall](), 0
    while place < len(text):
        try:
            found, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return []
        call = _call(found)
        if call is None:
            return []
        calls.append(call)
        place += len(text[place:]) - len(text[place:].lstrip("; \n\r\t"))
    return calls


def _call(found: Any) -> ToolCall | None:
    if not isinstance(found, Mapping) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        return ToolCall(name=found["name"], arguments=arguments)
    if not isinstance(arguments, Mapping):
        return None
    return ToolCall(name=found["name"], arguments=json.dumps(arguments, ensure_ascii=False))


def tool_style(style: ToolStyle, template: str) -> ToolStyle:
    """How a model writes calls, by its template where nobody says."""
    if style is not ToolStyle.AUTO:
        return style
    if OPEN in template:
        return ToolStyle.HERMES
    return ToolStyle.LLAMA if "tools" in template and "parameters" in template else ToolStyle.NONE


def make_parser(style: ToolStyle, *, parallel: bool) -> ToolParser:
    """A parser for one answer."""
    parser: ToolParser = HermesTools() if style is ToolStyle.HERMES else LlamaTools()
    return parser if parallel else FirstCall(parser)


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Raises ApiError for what is no list of functions."""
    for place, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, Mapping) or not function.get("name"):
            raise bad_request(
                f"tools[{place}] is not a function: it needs type 'function' and function.name", param="tools"
            )
