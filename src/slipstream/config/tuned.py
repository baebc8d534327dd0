"""`tuned.toml`: what `slipstream tune` found, and `--config` takes: a model, a draft, a shape for each batch size."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.config.speculation import Speculation, speculation

SHAPE_KEYS: Mapping[str, type] = {"steps": int, "topk": int, "draft_tokens": int, "draft_tp": str}
KEYS: Mapping[str, type] = {"model": str, "draft": str, **SHAPE_KEYS, "batch": dict}


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedShape:
    """How a batch of up to a size runs; what is None was left out."""

    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    draft_tp: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A file's settings."""

    model: str | None = None
    draft: str | None = None
    shape: TunedShape = TunedShape()  # for batches without one of their own
    batches: Mapping[int, TunedShape]

    def for_batch(self, batch: int) -> TunedShape:
        """The shape of the smallest tuned batch that is as large, else of the largest; without any, the file's own."""
        if not self.batches:
            return self.shape
        return self.batches[min((size for size in self.batches if size >= batch), default=max(self.batches))]


def read_tuned(path: Path) -> Tuned:
    """Read a file.

    Raises:
        ValueError: no such file, not TOML, a key that nothing knows, or a value of another kind.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"--config {path} does not exist; `slipstream tune` writes one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path} is not TOML: {error}") from None
    _check(found, KEYS, f"--config {path}")
    batches = {}
    for size, shape in found.pop("batch", {}).items():
        if not size.isdecimal() or int(size) < 1 or not isinstance(shape, dict):
            raise ValueError(f"--config {path}: [batch.{size}] is no batch size; write [batch.4] with keys below it")
        _check(shape, SHAPE_KEYS, f"--config {path}, [batch.{size}]")
        batches[int(size)] = _shape(shape, f"--config {path}, [batch.{size}]")
    return Tuned(
        model=found.get("model"),
        draft=found.get("draft"),
        shape=_shape({key: found[key] for key in SHAPE_KEYS if key in found}, f"--config {path}"),
        batches=batches,
    )


def _shape(found: Mapping[str, Any], where: str) -> TunedShape:
    shape = TunedShape(**found)
    if shape.steps is not None:
        try:
            speculation(shape.steps, 1 if shape.topk is None else shape.topk, shape.draft_tokens)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    return shape


def _check(found: Mapping[str, Any], known: Mapping[str, type], where: str) -> None:
    for key, value in found.items():
        if key not in known:
            raise ValueError(f"{where}: the key {key} is unknown; there are {', '.join(known)}")
        if type(value) is not known[key]:
            raise ValueError(f"{where}: {key} is {_kind(known[key])}, not {value!r}")


def _kind(kind: type) -> str:
    return {int: "a whole number", str: "a text in quotes", dict: "a table"}[kind]


def tuned_toml(
    *, model: str, draft: str | None, shapes: Mapping[int, tuple[Speculation, str]], notes: Mapping[int, str]
) -> str:
    """A file's text: shapes and places for the draft by batch size, each below its note."""
    lines = ["# Written by `slipstream tune`; generate, chat and serve take it as --config FILE, and flags beat it."]
    lines += [f"model = {_quoted(model)}"]
    lines += [] if draft is None else [f"draft = {_quoted(draft)}"]
    for size, (shape, draft_tp) in sorted(shapes.items()):
        lines += ["", *(f"# {line}" for line in notes.get(size, "").splitlines()), f"[batch.{size}]"]
        lines += [f"steps = {shape.steps}", f"topk = {shape.topk}", f"draft_tokens = {shape.draft_tokens}"]
        lines += [f"draft_tp = {_quoted(draft_tp)}"] if shape.steps else []
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
