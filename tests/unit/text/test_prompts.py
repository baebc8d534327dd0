"""Prompt files of every layout read alike, and a bad line is named by its number."""

import json
import lzma
from collections import Counter
from pathlib import Path

import pytest

from slipstream.text.prompts import PromptEntry, builtin_prompts, read_prompts, read_requests

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


def test_a_line_may_say_how_its_prompt_is_to_be_run(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl",
        {"prompt": "one", "priority": -2},
        {"messages": TALK, "steps": 0},
        {"turns": ["two"], "steps": 3, "priority": 1, "id": 4},
        {"prompt": "three"},
    )
    found = read_requests(path)
    assert [(entry.priority, entry.steps) for entry in found] == [(-2, None), (0, 0), (1, 3), (0, None)]
    assert [(entry.prompt, entry.id) for entry in found] == [("one", None), (None, None), ("two", "4"), ("three", None)]


def test_a_set_whose_steps_mean_something_else_is_read_as_prompts(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "one", "steps": ["add", "divide"], "priority": "high"})
    assert read_prompts(path) == [PromptEntry(prompt="one")]


@pytest.mark.parametrize("key", ["priority", "steps"])
@pytest.mark.parametrize("value", ["3", 1.5, True, None, [1]])
def test_a_setting_that_is_no_whole_number_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "one"}, {"prompt": "two", key: value})
    with pytest.raises(ValueError, match=rf'^line 2 of .*p\.jsonl has a "{key}" that is not a whole number; write one'):
        read_requests(path)


def test_steps_below_zero_are_refused_by_line(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "one", "steps": -1})
    with pytest.raises(ValueError, match=r'line 1 of .*p\.jsonl has "steps" -1; write 0 \(no speculation\) or more'):
        read_requests(path)


def test_lines_of_text_are_requests_without_settings(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("first\nsecond\n")
    assert read_requests(tmp_path / "p.txt") == [PromptEntry(prompt="first"), PromptEntry(prompt="second")]
