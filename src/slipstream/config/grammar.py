"""What an answer's text must look like: a JSON schema, a regular expression, a Lark grammar or a choice of texts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class GrammarKind(Enum):
    """How a grammar is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A grammar as its user wrote it; text/grammar.py says whether it means anything."""

    kind: GrammarKind
    text: str  # of a choice, a JSON list of its texts


def json_schema(schema: str | Mapping[str, Any]) -> Grammar:
    """JSON that a schema describes.

    Raises:
        ValueError: the schema is no JSON object.
    """
    try:
        found = json.loads(schema) if isinstance(schema, str) else dict(schema)
        text = json.dumps(found, ensure_ascii=False)
    except (ValueError, TypeError) as error:
        raise ValueError(f"the JSON schema is not JSON ({error}); see https://json-schema.org") from None
    if not isinstance(found, dict):
        raise ValueError(f"a JSON schema is an object, not {type(found).__name__}; see https://json-schema.org")
    return Grammar(kind=GrammarKind.JSON_SCHEMA, text=text)


def json_object() -> Grammar:
    """Any JSON object."""
    return json_schema({"type": "object"})


def regex(pattern: str) -> Grammar:
    """A text that a regular expression (Rust's dialect) matches as a whole."""
    return Grammar(kind=GrammarKind.REGEX, text=_some_text(pattern, "regular expression"))


def lark(text: str) -> Grammar:
    """A text that a grammar in llguidance's dialect of Lark derives from `start`."""
    return Grammar(kind=GrammarKind.LARK, text=_some_text(text, "Lark grammar"))


def choice(texts: Sequence[str]) -> Grammar:
    """One of several texts.

    Raises:
        ValueError: there is none, or one is empty or no text.
    """
    if isinstance(texts, str) or not texts or not all(isinstance(each, str) and each for each in texts):
        raise ValueError(f"a choice is a list of texts, none of them empty, not {texts!r}")
    return Grammar(kind=GrammarKind.CHOICE, text=json.dumps(list(texts), ensure_ascii=False))


def _some_text(text: str, what: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the {what} is empty; leave it out, or write one")
    return text
