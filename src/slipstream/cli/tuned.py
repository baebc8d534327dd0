"""`--config FILE`: what a file of `slipstream tune` sets, as far as flags left it open."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.config.tuned import TunedShape, read_tuned

SHAPE = ("steps", "topk", "draft_tokens")


def open_options(path: Path, together: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options that the file settles for so many requests together.

    given: model, draft, no_draft and the shape as flags have them; None was left out. A flag beats the file, and takes
    what follows from it along: with `--steps`, the file's draft tokens are of another tree.

    Raises:
        ValueError: the file cannot be read, or holds what nothing knows.
    """
    file = read_tuned(path)
    shape = file.for_batch(together)
    found: dict[str, Any] = {}
    if given["model"] is None:
        found["model"] = file.model
    if given["no_draft"]:
        return found
    if shape.steps == 0 and all(given[name] is None for name in (*SHAPE, "draft", "draft_tp")):
        return {**found, "no_draft": True}
    if given["draft"] is None:
        found["draft"] = file.draft
    if given["draft_tp"] is None and shape.steps != 0:
        found["draft_tp"] = shape.draft_tp
    return {**found, **_open_shape(shape, given)}


def _open_shape(shape: TunedShape, given: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {name: getattr(shape, name) if given[name] is None else given[name] for name in SHAPE}
    is_chain = chosen["topk"] in (None, 1)
    if given["draft_tokens"] is None and (given["steps"] is not None or given["topk"] is not None):
        chosen["draft_tokens"] = None
    if given["draft_tokens"] is not None and given["steps"] is None and is_chain:
        chosen["steps"] = None
    if chosen["steps"] == 0 and given["topk"] is None:
        chosen["topk"] = None
    return chosen
