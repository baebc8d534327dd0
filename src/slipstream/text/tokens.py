"""Special tokens as the JSON files beside a tokenizer spell them."""

from typing import Any


def token_text(token: Any) -> str | None:
    """Give a token's text, which a config holds bare or as an object with its flags."""
    return token.get("content") if isinstance(token, dict) else token
