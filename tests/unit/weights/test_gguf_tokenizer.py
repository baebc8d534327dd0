"""A tokenizer built from GGUF metadata cuts text as the model's own does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from slipstream.weights.gguf import GgufSource
from tests.unit.weights import tiny_gguf

TEXTS = (
    "hello world",
    " hello  there\n\n",
    "I'm 1234 years, and WE'LL see 3.14!",
    "caf\u00e9 cafe\u0301 \u4f60\u597d \U0001f680\U0001f9d1\u200d\U0001f680",
    "<|im_start|>user\nhello<|im_end|>\n",
    "",
)
CORPUS = ("hello world hello there we'll see the caf\u00e9 in 1234 days, 1234 nights", "and another 12 or 34")


def built(path: Path, extra: Mapping[str, Any]) -> Tokenizer:
    tiny_gguf.write(path, extra=extra)
    return Tokenizer.from_str(GgufSource(path).tokenizer_json())


@pytest.mark.parametrize("splitter", ["smollm", "qwen2", "llama-bpe", "gpt-2", "default"])
@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_round_trip(tmp_path: Path, splitter: str, text: str) -> None:
    tokenizer = built(tmp_path / "m.gguf", tiny_gguf.tokenizer_metadata(CORPUS, splitter=splitter))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    composed = text.replace("e\u0301", "\u00e9") if splitter == "qwen2" else text
    assert tokenizer.decode(ids, skip_special_tokens=False) == composed


@pytest.mark.parametrize(
    ("splitter", "pieces"),
    [
        ("smollm", ["a", "\u0120", "1", "2", "3", "4"]),
        ("qwen2", ["a", "\u0120", "1", "2", "3", "4"]),
        ("llama-bpe", ["a", "\u0120", "123", "4"]),
        ("gpt-2", ["a", "\u01201234"]),
    ],
)
def test_numbers_are_cut_as_each_family_cuts_them(tmp_path: Path, splitter: str, pieces: list[str]) -> None:
    tokenizer = built(tmp_path / "m.gguf", tiny_gguf.tokenizer_metadata(splitter=splitter))
    assert tokenizer.pre_tokenizer is not None
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("a 1234")] == pieces


def test_special_tokens_stay_whole_and_out_of_the_text(tmp_path: Path) -> None:
    tokenizer = built(tmp_path / "m.gguf", {})
    ids = tokenizer.encode("<|im_start|>hello<|im_end|>").ids
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.decode(ids) == "hello"


def test_padding_tokens_are_not_tokens(tmp_path: Path) -> None:
    tokenizer = built(tmp_path / "m.gguf", {})
    assert tokenizer.id_to_token(tiny_gguf.VOCAB - 1) is None
    assert tokenizer.decode([tiny_gguf.VOCAB - 1]) == ""


@pytest.mark.parametrize(
    ("extra", "begins"),
    [
        ({}, False),
        ({"tokenizer.ggml.add_bos_token": True}, True),
        ({"tokenizer.ggml.pre": "llama-bpe"}, True),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False),
    ],
)
def test_the_first_token_is_added_where_the_file_or_family_asks(
    tmp_path: Path, extra: dict[str, Any], begins: bool
) -> None:
    tokenizer = built(tmp_path / "m.gguf", extra)
    assert (tokenizer.encode("hello").ids[0] == 1) is begins
    assert tokenizer.encode("hello", add_special_tokens=False).ids[0] != 1


def sentencepiece_metadata() -> dict[str, Any]:
    """Give a vocabulary of bytes, letters and a few merged pieces, as a converted Llama 2 has it."""
    letters = ["\u2581", *"helowrdti", "he", "ll", "llo", "hello", "\u2581hello", "\u2581w", "or", "\u2581wor"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(index) for index in range(len(tokens))],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(letters)],
    }


@pytest.mark.parametrize("text", ["hello world", " hello", "hi caf\u00e9 \U0001f680", "a  b\n", "</s>hello"])
def test_a_sentencepiece_vocabulary_gives_transformers_ids(tmp_path: Path, text: str) -> None:
    ours = built(tmp_path / "m.gguf", sentencepiece_metadata())
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path, gguf_file="m.gguf")
    assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text, add_special_tokens=False)
    assert ours.encode(text).ids[0] == 1
    assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text), skip_special_tokens=True)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"tokenizer.ggml.pre": "tekken"}, "splits words as 'tekken'; the ways known are smollm"),
        ({"tokenizer.ggml.merges": ["h ello"]}, r"broken tokenizer \(.*ello.*\); download it again"),
        ({"tokenizer.ggml.model": "t5"}, "tokenizer of the kind 't5'; the kinds read are gpt2 and llama"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "300 tokens but 2 token types"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.5]}, "300 tokens but 1 scores"),
        ({"tokenizer.ggml.bos_token_id": 999, "tokenizer.ggml.add_bos_token": True}, "begins texts with token 999"),
    ],
)
def test_a_tokenizer_that_cannot_be_built_says_why(tmp_path: Path, extra: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        built(tmp_path / "m.gguf", extra)


def test_the_chat_template_is_the_files(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf")
    assert GgufSource(tmp_path / "m.gguf").chat_template() == tiny_gguf.tokenizer_metadata()["tokenizer.chat_template"]
