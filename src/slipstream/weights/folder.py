"""Read the JSON files of a checkpoint's folder, and the config of whatever a model is stored in."""

import json
from pathlib import Path
from typing import Any

from slipstream.weights.gguf_config import hf_config
from slipstream.weights.gguf_header import read_header


def read_json(path: Path) -> dict[str, Any]:
    """Read an object from a file; empty where there is no such file.

    Raises:
        ValueError: the file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{path} is not valid JSON; download it again") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not a JSON object; download it again")
    return found


def read_config(path: Path) -> dict[str, Any]:
    """Read a model's config.json, or what a .gguf file's metadata makes of it.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    if path.suffix == ".gguf":
        return hf_config(read_header(path))
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} has no config.json; give a model's folder, a .gguf file or a pulled name")
    return read_json(path / "config.json")
