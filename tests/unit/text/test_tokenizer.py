"""Our tokenizer and transformers' cut the same folder's text alike."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import processors
from transformers import AutoTokenizer

from slipstream.text.tokenizer import Tokenizer, load_tokenizer
from tests.unit.text import tiny_tokenizer
from tests.unit.text.tiny_tokenizer import BOS, EOS, TURN, USER
from tests.unit.weights import tiny_gguf

TEXTS = (
    "the quick brown fox",
    f"{BOS}hello {TURN} you{USER}think</think>{EOS}",
    "caf\u00e9 cafe\u0301 \u4f60\u597d \U0001f680\U0001f9d1\u200d\U0001f680",
    "  two  spaces\n\n\ttab 1234",
    "<pad> [extra]",
    "",
)
WITH_FLAGS = {"content": "<pad>", "lstrip": True, "rstrip": True, "normalized": False, "special": True}
CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"add_bos_token": True},
    {"add_bos_token": True, "add_eos_token": True},
    {"add_bos_token": False},
    {"bos_token": {"__type": "AddedToken", "content": BOS, "special": True}},
    {"pad_token": "<pad>", "additional_special_tokens": ["[extra]", TURN]},
    {"added_tokens_decoder": {"400": WITH_FLAGS, "401": {**WITH_FLAGS, "content": "[extra]"}}},
    {"bos_token": None, "add_bos_token": False},
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(tiny_tokenizer.save(tmp_path_factory.mktemp("tokenizer")))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_ids_and_text_equal_transformers(tmp_path: Path, config: dict[str, Any]) -> None:
    tiny_tokenizer.save(tmp_path, config=config)
    _compare(tmp_path)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_ids_and_text_equal_transformers_where_the_tokenizer_itself_adds_bos(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    raw = tiny_tokenizer.raw()
    raw.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    tiny_tokenizer.save(tmp_path, config=config, tokenizer=raw)
    _compare(tmp_path)


def _compare(folder: Path) -> None:
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special), text
            assert ours.decode(ids, skip_special_tokens=special) == theirs.decode(ids, skip_special_tokens=special)
    assert ours.vocab_size == len(theirs)
    assert ours.bos_id == theirs.bos_token_id
    assert set(theirs.all_special_ids) <= ours.special_ids


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_the_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_what_a_folder_says_of_padding_and_truncation_is_ignored(tmp_path: Path) -> None:
    raw = tiny_tokenizer.raw()
    raw.enable_truncation(4)
    raw.enable_padding(length=32)
    tiny_tokenizer.save(tmp_path, tokenizer=raw)
    assert load_tokenizer(tmp_path).encode("a b c d e f g h") == tiny_tokenizer.raw().encode("a b c d e f g h").ids


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({}, {1}),
        ({"generation_config.json": {"eos_token_id": [1, 2]}}, {1, 2}),
        ({"generation_config.json": {"eos_token_id": 2}, "config.json": {"eos_token_id": 7}}, {1, 2, 7}),
        ({"config.json": {"eos_token_id": None}}, {1}),
    ],
)
def test_the_ends_of_a_text_are_all_that_any_file_names(tmp_path: Path, others: dict, expected: set[int]) -> None:
    assert load_tokenizer(tiny_tokenizer.save(tmp_path, others=others)).eos_ids == expected


def test_bos_comes_from_the_model_config_where_the_tokenizer_names_none(tmp_path: Path) -> None:
    tiny_tokenizer.save(tmp_path, config={"bos_token": None}, others={"config.json": {"bos_token_id": 5}})
    assert load_tokenizer(tmp_path).bos_id == 5


def test_special_ids_hold_what_is_hidden_from_text_and_nothing_else(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.token_to_id(USER) not in tokenizer.special_ids
    assert tokenizer.token_to_id("no such token") is None


def test_a_gguf_file_gives_its_tokenizer_and_ends(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", extra={"tokenizer.ggml.eot_token_id": 0})
    found = load_tokenizer(tmp_path / "m.gguf")
    assert (found.bos_id, found.eos_ids, found.special_ids) == (1, {0, 2}, {0, 1, 2})
    assert found.decode(found.encode("hello 12")) == "hello 12"


def test_a_folder_without_a_tokenizer_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer\.json; save one with transformers' AutoTokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", "{}", r"tokenizer\.json is not a tokenizer"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json is not valid JSON; download it again"),
        ("config.json", "[]", r"config\.json is not a JSON object"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str, words: str) -> None:
    tiny_tokenizer.save(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=words):
        load_tokenizer(tmp_path)


def test_nothing_in_the_room_imports_torch() -> None:
    rooms = ", ".join(f"slipstream.text.{name}" for name in ("prompts", "stops", "template", "tokenizer"))
    subprocess.run([sys.executable, "-c", f"import sys, {rooms}; sys.exit('torch' in sys.modules)"], check=True)
