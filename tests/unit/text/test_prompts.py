"""Prompt files of every layout read alike, and a bad line is named by its number."""

import json
import lzma
from collections import Counter
from pathlib import Path

import pytest

from slipstream.text.prompts import PromptEntry, builtin_prompts, read_prompts

CATEGORIES = (
    *("coding", "math", "humanities", "stem", "writing", "summarization"),
    *("roleplay", "rag", "multilingual", "reasoning", "qa"),
)
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_every_kind_of_json_line_becomes_an_entry(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl",
        {"prompt": "one", "id": 7, "task": "math"},
        {"turns": ["two", "and then"], "set": "gsm8k", "ref": ["ignored"]},
        {"messages": TALK, "id": "c"},
    )
    assert read_prompts(path) == [
        PromptEntry(prompt="one", id="7", task="math"),
        PromptEntry(prompt="two", set="gsm8k"),
        PromptEntry(messages=tuple(TALK), id="c"),
    ]


def test_a_text_file_is_one_prompt_a_line(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes("\ufefffirst\r\n\n  second \u2028 half\n".encode())
    assert [entry.prompt for entry in read_prompts(tmp_path / "p.txt")] == ["first", "  second \u2028 half"]


def test_a_brace_at_the_beginning_means_json_lines(tmp_path: Path) -> None:
    assert read_prompts(write(tmp_path / "prompts", {"prompt": "one"})) == [PromptEntry(prompt="one")]


@pytest.mark.parametrize("name", ["p.jsonl.xz", "p.txt.xz"])
def test_a_compressed_file_reads_as_what_it_holds(tmp_path: Path, name: str) -> None:
    content = b'\n{"prompt": "one"}\n'
    (tmp_path / name).write_bytes(lzma.compress(content))
    assert read_prompts(tmp_path / name) == [PromptEntry(prompt="one")]


BAD_LINES = (
    ("[1]", "is not a JSON object; write one such as"),
    ('"text"', "is not a JSON object"),
    ("{", "is not JSON; write one object a line"),
    ("plain text", "is not JSON"),
    ("{}", "none of the keys prompt, turns, messages; add one"),
    ('{"text": "a"}', "none of the keys"),
    ('{"prompt": 3}', '"prompt" that is not a text'),
    ('{"prompt": ""}', '"prompt" that is not a text'),
    ('{"turns": "a"}', '"turns" that are not a list'),
    ('{"turns": []}', '"turns" that are not a list'),
    ('{"turns": [["a"]]}', '"turns" that is not a text'),
    ('{"messages": []}', '"messages" that are not a list of objects'),
    ('{"messages": ["a"]}', '"messages" that are not a list of objects'),
    ('{"messages": [{"content": "a"}]}', "a message without a role or content"),
    ('{"prompt": "a", "id": [1]}', 'a label "id" that is neither a text nor a number'),
    ('{"prompt": "a", "task": true}', 'a label "task" that is neither'),
)


@pytest.mark.parametrize(("line", "words"), BAD_LINES)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "p.jsonl").write_text(f'{{"prompt": "good"}}\n\n{line}\n')
    with pytest.raises(ValueError, match=r"^line 3 of .*p\.jsonl (is|has) .*; ") as caught:
        read_prompts(tmp_path / "p.jsonl")
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n \n\n", "\ufeff".encode()])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=r"p\.jsonl is empty; write one prompt a line"):
        read_prompts(tmp_path / "p.jsonl")


@pytest.mark.parametrize(("name", "content"), [("p.txt", b"\xff\xfe"), ("p.txt.xz", b"not xz"), ("p.xz", b"\xfd7zXZ")])
def test_a_file_that_is_not_text_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="is not UTF-8 text, plain or in xz"):
        read_prompts(tmp_path / name)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"p\.jsonl does not exist; give a file of prompts"):
        read_prompts(tmp_path / "p.jsonl")


def test_the_built_in_prompts_are_three_for_each_category() -> None:
    entries = builtin_prompts()
    assert Counter(entry.task for entry in entries) == dict.fromkeys(CATEGORIES, 3)
    assert len({entry.id for entry in entries}) == len({entry.prompt for entry in entries}) == 33
    assert all(entry.prompt and len(entry.prompt) < 350 for entry in entries)
