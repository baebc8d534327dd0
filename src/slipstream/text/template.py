"""Write a conversation as the model was taught to read one: Hugging Face's chat templates, in a sandbox.

A template is a program from the internet. It runs in Jinja's immutable sandbox, sees plain values only, and any error
it ends in is the user's, in one sentence.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slipstream.text.tokens import token_text
from slipstream.weights.folder import read_json
from slipstream.weights.gguf_header import GgufHeader, read_header
from slipstream.weights.gguf_tokenizer import chat_template

DEFAULT_NAME = "default"  # among several templates


class ChatTemplate:
    """A compiled template, with the tokens that it may write around a conversation."""

    def __init__(self, source: str, *, bos_token: str | None, eos_token: str | None) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        try:
            self._template = _environment().from_string(source)
        except Exception as error:  # the compiler raises more than syntax errors on deep nesting
            raise ValueError(f"the chat template cannot be read ({_one_line(error)}); give another, or none") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """Write the messages as one text, ending where the assistant is to begin."""
        given = {"tools": tools, "add_generation_prompt": add_generation_prompt, "documents": None, **kwargs}
        try:
            return self._template.render(messages=[_message(found) for found in messages], **{**self._tokens, **given})
        except Exception as error:  # a template may fail in any way that Python code does
            raise ValueError(
                f"the chat template does not accept these messages ({_one_line(error)}); change the messages"
            ) from None


def load_template(path: Path) -> ChatTemplate | None:
    """Load the template of a model's directory or .gguf file; None where it has none."""
    if path.suffix == ".gguf" and path.is_file():
        return _from_gguf(read_header(path))
    config = read_json(path / "tokenizer_config.json")
    source = _beside(path) or _configured(config.get("chat_template"), path)
    if source is None:
        return None
    bos, eos = (token_text(config.get(name)) for name in ("bos_token", "eos_token"))
    return ChatTemplate(source, bos_token=bos, eos_token=eos)


def _from_gguf(header: GgufHeader) -> ChatTemplate | None:
    source = chat_template(header)
    if source is None:
        return None
    return ChatTemplate(source, bos_token=_gguf_token(header, "bos"), eos_token=_gguf_token(header, "eos"))


def _gguf_token(header: GgufHeader, name: str) -> str | None:
    index = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    tokens = header.metadata.get("tokenizer.ggml.tokens", [])
    return tokens[index] if index is not None and index < len(tokens) else None


def _beside(folder: Path) -> str | None:
    """Read the template that has a file of its own."""
    path = folder / "chat_template.jinja"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _configured(found: Any, folder: Path) -> str | None:
    """Read the template in tokenizer_config.json: text, or a list with a default among named ones."""
    if found is None or isinstance(found, str):
        return found
    try:
        named = {entry["name"]: entry["template"] for entry in found}
    except (TypeError, KeyError):
        raise ValueError(f"{folder} has a chat_template that is neither text nor a list; download it again") from None
    if DEFAULT_NAME not in named:
        raise ValueError(f"{folder} has the chat templates {', '.join(named)} but no default; rename one to default")
    return named[DEFAULT_NAME]


def _environment() -> ImmutableSandboxedEnvironment:
    """Build the sandbox, with the four things that Hugging Face's templates expect beyond Jinja."""
    found = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    found.filters["tojson"] = _to_json
    found.globals["raise_exception"] = _raise
    found.globals["strftime_now"] = _now
    return found


class Sandbox(ImmutableSandboxedEnvironment):
    """Refuse a forbidden attribute at once; Jinja's own prints it as nothing where nobody looks further."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"it reaches for {attribute} of a {type(obj).__name__}")


class Generation(Extension):
    """Accept `{% generation %}`, with which trainers mark the assistant's own words; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  Jinja's interface

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without Jinja's escapes for HTML, taking what templates pass by place or name."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a message, without the keys that clients send empty and templates would print as None."""
    return {key: value for key, value in message.items() if value is not None}


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
