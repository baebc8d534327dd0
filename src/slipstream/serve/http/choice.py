"""Which tools a chat offers, and whether it must call one: then a grammar makes the answer a call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.config.grammar import Grammar, json_schema
from slipstream.serve.http.errors import bad_request
from slipstream.serve.http.protocol import ChatBody
from slipstream.serve.http.settings import ToolStyle
from slipstream.serve.http.tools import ForcedCall, ForcedCalls, NoTools, ToolParser, check_tools, make_parser

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """What becomes of a chat's tools."""

    shown: Tools | None = None  # to the model, by its template
    parser: Callable[[], ToolParser] = NoTools
    grammar: Grammar | None = None  # of an answer that must be a call
    named: bool = False  # the one function that it must call


def tool_choice(body: ChatBody, style: ToolStyle) -> ToolChoice:
    """Settle `tools`, `tool_choice` and `parallel_tool_calls`.

    Raises:
        ApiError: no functions, none of the chosen name, or a model that was not taught to call any.
    """
    choice, tools = body.tool_choice, body.tools
    if not tools:
        if choice not in (None, "none", "auto"):
            raise bad_request("tool_choice needs tools", param="tool_choice")
        return ToolChoice()
    check_tools(tools)
    if choice == "none":
        return ToolChoice()
    if style is ToolStyle.NONE:
        raise bad_request(
            "this model's chat template knows no tools; leave them out, or start the server with --chat-template",
            param="tools",
            code="unsupported_parameter",
        )
    parallel = body.parallel_tool_calls is not False
    if choice in (None, "auto"):
        return ToolChoice(shown=tools, parser=lambda: make_parser(style, parallel=parallel))
    if choice == "required":
        return ToolChoice(shown=tools, parser=ForcedCalls, grammar=_any_call(tools, parallel=parallel))
    function = _named(choice, tools)
    name = function["name"]
    return ToolChoice(
        shown=tools, parser=lambda: ForcedCall(name), grammar=json_schema(_parameters(function)), named=True
    )


def _named(choice: Any, tools: Tools) -> Mapping[str, Any]:
    wanted = choice.get("function") if isinstance(choice, Mapping) else None
    name = wanted.get("name") if isinstance(wanted, Mapping) else None
    found = next((tool["function"] for tool in tools if tool["function"]["name"] == name), None)
    if found is None:
        names = ", ".join(str(tool["function"]["name"]) for tool in tools)
        raise bad_request(f"tool_choice names no function among the tools, which are {names}", param="tool_choice")
    return found


def _any_call(tools: Tools, *, parallel: bool) -> Grammar:
    """A list of calls of these functions, not empty."""
    definitions: dict[str, Any] = {}
    items: list[dict[str, Any]] = []
    for tool in tools:
        parameters = dict(_parameters(tool["function"]))
        definitions |= parameters.pop("$defs", {})
        properties = {"name": {"const": tool["function"]["name"]}, "arguments": parameters}
        items.append(
            {
                "type": "object",
                "properties": properties,
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": items}}
    schema |= {} if parallel else {"maxItems": 1}
    return json_schema({**schema, "$defs": definitions} if definitions else schema)


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """A function's schema; one without takes no arguments."""
    found = function.get("parameters")
    if found is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(found, Mapping):
        raise bad_request(f"the parameters of {function['name']} are no JSON schema", param="tools")
    return found
