"""Read the JSON files that lie beside a tokenizer."""

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """Read an object from a file; empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{path} is not JSON; download it again") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not a JSON object; download it again")
    return found


def token_text(token: Any) -> str | None:
    """Give a token's text, which a config holds bare or as an object with its flags."""
    return token.get("content") if isinstance(token, dict) else token
