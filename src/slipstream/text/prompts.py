"""Read prompts from a file: JSON lines in the layouts of the usual sets, or one text a line."""

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

KEYS = ("prompt", "turns", "messages")
LABELS = ("id", "task", "set")
SETTINGS = ("priority", "steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEntry:
    """One prompt, as a text or as a conversation, with what its file says about it."""

    prompt: str | None = None  # from "prompt", the first of "turns", or a line of text
    messages: tuple[dict[str, Any], ...] | None = None  # from "messages"; then prompt is None
    id: str | None = None
    task: str | None = None
    set: str | None = None
    priority: int = 0  # lower runs first; read_requests fills it, as the next
    steps: int | None = None  # the most draft steps of a cycle; None = the engine's, 0 = no speculation

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The messages, or the prompt as one user turn."""
        if self.messages is not None:
            return [dict(message) for message in self.messages]
        return [{"role": "user", "content": self.prompt}]


def read_prompts(path: Path) -> list[PromptEntry]:
    """Read a file of prompts; one compressed with xz reads as what it holds."""
    return [_entry(line) for line in _lines_of(path)]


def read_requests(path: Path) -> list[PromptEntry]:
    """The same, with what a line says about how its prompt is to be run: "priority" and "steps"."""
    return [replace(_entry(line), **_settings(line)) for line in _lines_of(path)]


def builtin_prompts() -> list[PromptEntry]:
    """Give the prompts that ship with slipstream: three for each of SPEED-Bench's qualitative categories."""
    file = resources.files("slipstream.text") / "data" / "prompts.jsonl"
    lines = _parse(file.read_text(encoding="utf-8"), name="the built-in prompts", json_lines=True)
    return [_entry(line) for line in lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line of a file: an object, or a text."""

    place: str  # for refusals
    found: Mapping[str, Any] | str


def _lines_of(path: Path) -> list[_Line]:
    return _parse(_read(path), name=str(path), json_lines=path.name.removesuffix(".xz").endswith(".jsonl"))


def _read(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"{path} does not exist; give a file of prompts, one a line")
    try:
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        return content.decode("utf-8-sig")
    except (UnicodeDecodeError, lzma.LZMAError):
        raise ValueError(f"{path} is not UTF-8 text, plain or in xz; write it again as such") from None


def _parse(text: str, *, name: str, json_lines: bool) -> list[_Line]:
    """Read every line that is not blank; the first decides for a file whose name does not."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise ValueError(f"{name} is empty; write one prompt a line")
    if json_lines or lines[0][1].lstrip().startswith("{"):
        return [_from_json(line, place=f"line {number} of {name}") for number, line in lines]
    return [_Line(place=f"line {number} of {name}", found=line.rstrip("\r")) for number, line in lines]


def _from_json(line: str, *, place: str) -> _Line:
    """Read one JSON object."""
    try:
        found = json.loads(line)
    except ValueError:
        raise ValueError(f"{place} is not JSON; write one object a line") from None
    if not isinstance(found, dict):
        raise ValueError(f'{place} is not a JSON object; write one such as {{"prompt": "..."}}')
    return _Line(place=place, found=found)


def _entry(line: _Line) -> PromptEntry:
    """Read what is asked, and its labels."""
    found, place = line.found, line.place
    if isinstance(found, str):
        return PromptEntry(prompt=found)
    identity, task, of = (_label(found, key, place) for key in LABELS)
    entry = PromptEntry(id=identity, task=task, set=of)
    if "messages" in found:
        return replace(entry, messages=_messages(found["messages"], place))
    return replace(entry, prompt=_prompt(found, place))


def _prompt(found: Mapping[str, Any], place: str) -> str:
    """Read a prompt, or the first of several turns."""
    key = next((key for key in KEYS if key in found), None)
    if key is None:
        raise ValueError(f"{place} has none of the keys {', '.join(KEYS)}; add one")
    value = found[key]
    if key == "turns":
        if not isinstance(value, list) or not value:
            raise ValueError(f'{place} has "turns" that are not a list with a text in it; write ["..."]')
        value = value[0]
    if not isinstance(value, str) or not value:
        raise ValueError(f'{place} has a "{key}" that is not a text; write it in quotes')
    return value


def _messages(found: Any, place: str) -> tuple[dict[str, Any], ...]:
    """Read a conversation."""
    if not isinstance(found, list) or not found or not all(isinstance(message, dict) for message in found):
        raise ValueError(
            f'{place} has "messages" that are not a list of objects; write [{{"role": .., "content": ..}}]'
        )
    if not all(isinstance(message.get("role"), str) and "content" in message for message in found):
        raise ValueError(f"{place} has a message without a role or content; give each message both")
    return tuple(found)


def _label(found: Mapping[str, Any], key: str, place: str) -> str | None:
    """Read a label; sets number their prompts as often as they name them."""
    value = found.get(key)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f'{place} has a label "{key}" that is neither a text nor a number; write it in quotes')


def _settings(line: _Line) -> dict[str, Any]:
    """Read how a prompt is to be run."""
    given = {} if isinstance(line.found, str) else {key: line.found[key] for key in SETTINGS if key in line.found}
    for key, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f'{line.place} has a "{key}" that is not a whole number; write one, or leave it out')
    if given.get("steps", 0) < 0:
        raise ValueError(f'{line.place} has "steps" {given["steps"]}; write 0 (no speculation) or more')
    return given
