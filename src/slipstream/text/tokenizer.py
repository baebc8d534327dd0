"""Turn text into token ids and back, exactly as transformers does for the same folder."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from slipstream.text.tokens import token_text
from slipstream.weights.folder import read_json
from slipstream.weights.gguf_config import token_ids
from slipstream.weights.gguf_header import read_header
from slipstream.weights.gguf_tokenizer import tokenizer_json

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LISTED_TOKENS = ("additional_special_tokens", "extra_special_tokens")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class Tokenizer:
    """A `tokenizers` tokenizer, with the ids that begin and end a text."""

    def __init__(self, raw: tokenizers.Tokenizer, *, bos_id: int | None, eos_ids: Iterable[int]) -> None:
        self.raw = raw
        self.bos_id = bos_id
        self.eos_ids = frozenset(eos_ids)
        self.special_ids = frozenset(index for index, token in raw.get_added_tokens_decoder().items() if token.special)
        self.vocab_size: int = raw.get_vocab_size()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self.raw.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self.raw.decode(ids, skip_special_tokens=skip_special_tokens)

    def token_to_id(self, token: str) -> int | None:
        return self.raw.token_to_id(token)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a model's directory or .gguf file."""
    if path.suffix == ".gguf" and path.is_file():
        return _from_gguf(path)
    return _from_folder(path)


def _from_gguf(path: Path) -> Tokenizer:
    header = read_header(path)
    ids = token_ids(header)
    raw = tokenizers.Tokenizer.from_str(tokenizer_json(header))
    return Tokenizer(raw, bos_id=ids["bos_token_id"], eos_ids=_as_ids(ids["eos_token_id"]))


def _from_folder(folder: Path) -> Tokenizer:
    config = read_json(folder / "tokenizer_config.json")
    raw = _read_tokenizer(folder / "tokenizer.json")
    _add_configured_tokens(raw, config)
    settings = (read_json(folder / "generation_config.json"), read_json(folder / "config.json"))
    named = {name: raw.token_to_id(text) for name in NAMED_TOKENS if (text := token_text(config.get(name)))}
    begins = [named.get("bos_token"), *(found.get("bos_token_id") for found in settings)]
    ends = [named.get("eos_token"), *(found.get("eos_token_id") for found in settings)]
    return Tokenizer(
        raw,
        bos_id=next((index for index in begins if index is not None), None),
        eos_ids=[index for found in ends for index in _as_ids(found)],
    )


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """Read tokenizer.json; what it says of padding and truncation is for training."""
    if not path.is_file():
        raise ValueError(
            f"{path.parent} has no tokenizer.json; save one with transformers' AutoTokenizer.save_pretrained, "
            "or give the path of a .gguf file"
        )
    try:
        raw = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ValueError(f"{path} is not a tokenizer ({error}); download it again") from None
    raw.no_padding()
    raw.no_truncation()
    return raw


def _add_configured_tokens(raw: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Add the tokens that only tokenizer_config.json knows, or knows with other flags."""
    known = {index: repr(token) for index, token in raw.get_added_tokens_decoder().items()}
    table = sorted((int(index), _added(token)) for index, token in config.get("added_tokens_decoder", {}).items())
    raw.add_tokens([token for index, token in table if known.get(index) != repr(token)])
    present = {token.content for token in raw.get_added_tokens_decoder().values()}
    listed = [token for key in LISTED_TOKENS for token in _as_list(config.get(key))]
    wanted = [*(config.get(name) for name in NAMED_TOKENS), *listed]
    missing = [_added(token, special=True) for token in wanted if token and token_text(token) not in present]
    raw.add_tokens(missing)


def _added(token: Any, **flags: bool) -> AddedToken:
    """Make an added token from its text, or from an object with its flags."""
    if not isinstance(token, dict):
        return AddedToken(token, **flags)
    found = {flag: bool(token[flag]) for flag in FLAGS if flag in token}
    return AddedToken(token["content"], **{**found, **flags})


def _as_list(value: Any) -> list[Any]:
    """Read a list that may be missing, or a table of names."""
    return list(value.values()) if isinstance(value, dict) else list(value or [])


def _as_ids(value: int | Sequence[int] | None) -> list[int]:
    """Read one id, several, or none."""
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
