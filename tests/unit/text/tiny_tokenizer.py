"""Train a tiny byte-level tokenizer and save it as a model's folder holds it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE

BOS, EOS, TURN, USER = "<|begin|>", "<|end|>", "<|turn|>", "<think>"
CORPUS = (
    "the quick brown fox jumps over the lazy dog, then the dog sleeps",
    "caf\u00e9 na\u00efve \u4f60\u597d\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \U0001f680 \U0001f44d\U0001f3fd",
    "def main() -> None:\n    return 1234 + 5678\n",
)


def raw() -> Tokenizer:
    """Train the tokenizer: three special tokens, one that is part of the text, bytes, and some merges."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[BOS, EOS, TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(USER, normalized=False)])
    return tokenizer


def save(
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    tokenizer: Tokenizer | None = None,
    others: Mapping[str, Any] | None = None,
) -> Path:
    """Save tokenizer.json, tokenizer_config.json with what `config` changes, and other JSON files by name."""
    (tokenizer or raw()).save(str(folder / "tokenizer.json"))
    defaults = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS}
    files = {"tokenizer_config.json": {**defaults, **(config or {})}, **(others or {})}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder
