"""What a body asks of an answer's form: response_format, and structured_outputs and the guided_* fields of vLLM."""

from collections.abc import Callable, Mapping
from typing import Any

from slipstream.config import grammar
from slipstream.config.grammar import Grammar
from slipstream.serve.http.errors import bad_request
from slipstream.serve.http.protocol import SamplingBody

MAKERS: Mapping[str, Callable[[Any], Grammar]] = {
    "json": grammar.json_schema,
    "regex": grammar.regex,
    "choice": grammar.choice,
    "grammar": grammar.lark,
    "json_object": lambda wanted: grammar.json_object(),
}


def grammar_of(body: SamplingBody) -> Grammar | None:
    """The grammar that a body's fields come to; at most one of them may ask for one.

    Raises:
        ApiError: several ask, or one asks for what is none.
    """
    asked = [*_format(body.response_format), *_structured(body.structured_outputs), *_guided(body)]
    if not asked:
        return None
    if len(asked) > 1:
        names = " and ".join(param for param, _, _ in asked)
        raise bad_request(f"{names} both say what the answer must look like; give one", param=asked[1][0])
    ((param, kind, value),) = asked
    try:
        return MAKERS[kind](value)
    except (ValueError, TypeError) as error:
        raise bad_request(f"{param}: {error}", param=param) from None


Asked = list[tuple[str, str, Any]]  # the field, the maker, what the maker is given


def _format(given: Mapping[str, Any] | None) -> Asked:
    kind = (given or {}).get("type", "text")
    if given is None or kind == "text":
        return []
    if kind == "json_object":
        return [("response_format", kind, None)]
    wrapper = given.get("json_schema")
    if kind != "json_schema" or not isinstance(wrapper, Mapping):
        raise bad_request(
            "response_format is {'type': 'text'}, {'type': 'json_object'} or {'type': 'json_schema', 'json_schema':"
            " {'schema': ...}}",
            param="response_format",
        )
    return [("response_format", "json", wrapper.get("schema") or {"type": "object"})]


def _structured(given: Mapping[str, Any] | None) -> Asked:
    """vLLM's one field for all."""
    asked: Asked = []
    for name, value in (given or {}).items():
        if value is None or value is False:
            continue
        if name not in MAKERS:
            raise bad_request(
                f"structured_outputs.{name} is not supported; leave it out",
                param="structured_outputs",
                code="unsupported_parameter",
            )
        asked.append(("structured_outputs", name, value))
    return asked


def _guided(body: SamplingBody) -> Asked:
    """vLLM's older fields."""
    named = {name: getattr(body, f"guided_{name}") for name in ("json", "regex", "choice", "grammar")}
    return [(f"guided_{name}", name, value) for name, value in named.items() if value is not None]
