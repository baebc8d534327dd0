"""Tinted answers and tables."""

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from slipstream.cli.show import PLAIN, TINT, TintedAnswer, heading, may_tint, positions, table
from slipstream.serve.completion import Delta
from slipstream.text.tokenizer import Tokenizer, load_tokenizer
from tests.unit.text import tiny_tokenizer


class Terminal(io.StringIO):
    """A stdout that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def tokenizer(tmp_path: Any) -> Tokenizer:
    return load_tokenizer(tiny_tokenizer.save(tmp_path))


def shown(capsys: pytest.CaptureFixture[str], tokenizer: Tokenizer, *deltas: Delta, tint: bool = True) -> str:
    answer = TintedAnswer(tokenizer, tint=tint)
    for delta in deltas:
        answer.show(delta)
    assert answer.text == "".join(delta.text for delta in deltas)
    return capsys.readouterr().out


def delta(tokenizer: Tokenizer, words: list[str], accepted: int, text: str | None = None) -> Delta:
    ids = [token for word in words for token in tokenizer.encode(word)]
    assert len(ids) == len(words)
    return Delta(text="".join(words) if text is None else text, token_ids=tuple(ids), accepted=accepted)


def test_accepted_tokens_are_tinted_and_the_targets_own_are_plain(capsys, tokenizer):
    found = shown(capsys, tokenizer, delta(tokenizer, [" the"], 0), delta(tokenizer, [" quick", " brown", " fox"], 2))
    assert found == f" the{TINT} quick{PLAIN}{TINT} brown{PLAIN} fox"


def test_without_tint_the_text_is_as_it_is(capsys, tokenizer):
    assert shown(capsys, tokenizer, delta(tokenizer, [" quick", " fox"], 1), tint=False) == " quick fox"


def test_text_that_was_held_back_keeps_its_tint(capsys, tokenizer):
    held = delta(tokenizer, [" quick", " brown"], 1, text=" qu")
    rest = delta(tokenizer, [" fox"], 0, text="ick brown fox")
    assert shown(capsys, tokenizer, held, rest) == f"{TINT} qu{PLAIN}{TINT}ick{PLAIN} brown fox"


def test_a_character_of_several_tokens_counts_for_the_last(capsys, tokenizer):
    ids = tokenizer.encode("\u00f8")
    assert len(ids) == 2
    found = shown(capsys, tokenizer, Delta(text="\u00f8", token_ids=tuple(ids), accepted=1))
    assert found == "\u00f8"


@pytest.mark.parametrize(
    ("stdout", "environment", "expected"),
    [
        (Terminal(), {"TERM": "xterm-256color"}, True),
        (Terminal(), {"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm-256color"}, False),
    ],
    ids=["terminal", "NO_COLOR", "dumb", "pipe"],
)
def test_only_a_terminal_that_may_show_colours_is_tinted(monkeypatch, stdout, environment, expected):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", stdout)
    assert may_tint() is expected


def test_a_heading_is_one_short_line():
    assert heading("one\n two") == "one two"
    assert len(heading("word " * 100)) == 72


def test_positions_are_compact_and_never_empty():
    assert positions([1.0, 0.5, 0.046]) == "1.00 .50 .05"
    assert positions([]) == "-"


def test_a_table_of_eight_columns_fits_80_columns():
    names = ["prompt", "tokens", "plain tok/s", "speculative tok/s", "speed-up", "accept length"]
    names += ["acceptance by position", "identical"]
    row = ["writing", "1000", "100.0", "100.0", "1.50x", "2.31", ".80 .70 .60 .50", "yes"]
    terminal = io.StringIO()
    Console(file=terminal, width=80).print(table(names, [row]))
    lines = terminal.getvalue().splitlines()
    assert any("writing" in line and ".80 .70 .60 .50" in line and "yes" in line for line in lines)
    assert any("identical" in line for line in lines)


def test_words_of_a_table_stand_left_and_numbers_right():
    terminal = io.StringIO()
    Console(file=terminal, width=80).print(table(["name", "of", "count"], [["a", "x", "1"]], texts=["of"]))
    assert terminal.getvalue().splitlines()[-1].rstrip() == "a     x       1"
