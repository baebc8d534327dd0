"""`slipstream chat`: turns, commands, Ctrl-C, Ctrl-D, and a context that fills up."""

from collections.abc import Iterator
from typing import Any

import pytest

import slipstream
from slipstream.cli import show
from tests.unit.cli.world import Cli, World


def typing(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    """Type lines, press Ctrl-C (KeyboardInterrupt), then Ctrl-D."""
    keys = iter([*lines, EOFError])

    def ask(prompt: str) -> str:
        line = next(keys)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", ask)


def chat(world: World, *arguments: str) -> tuple[str, ...]:
    return ("chat", "--model", world.model, "--draft", world.draft, "--max-tokens", "12", *arguments)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """What every turn sent to the model."""
    sent: list[list[dict[str, str]]] = []
    stream = slipstream.LLM.stream

    def spy(self: Any, messages: Any, params: Any) -> Any:
        sent.append([dict(message) for message in messages])
        return stream(self, messages, params)

    monkeypatch.setattr(slipstream.LLM, "stream", spy)
    return sent


def test_each_turn_sends_the_whole_conversation_and_reports_its_numbers(cli: Cli, world: World, monkeypatch, asked):
    typing(monkeypatch, "the fox", "", "  and the dog ")
    outcome = cli(*chat(world))
    assert outcome.code == 0
    assert [[message["role"] for message in turn] for turn in asked] == [["user"], ["user", "assistant", "user"]]
    assert asked[1][0] == asked[0][0] == {"role": "user", "content": "the fox"}
    assert asked[1][1]["content"] in outcome.out
    assert asked[1][2]["content"] == "and the dog"
    assert outcome.out.count("accept length") == outcome.out.count("tok/s") == 2
    assert "\x1b" not in outcome.out


def test_reset_forgets_and_exit_leaves(cli: Cli, world: World, monkeypatch, asked):
    typing(monkeypatch, "the fox", "/reset", "the dog", "/exit", "never")
    assert cli(*chat(world)).code == 0
    assert [[message["content"] for message in turn] for turn in asked] == [["the fox"], ["the dog"]]


def test_ctrl_c_stops_the_answer_and_not_the_program(cli: Cli, world: World, monkeypatch, asked):
    interrupted = slipstream.LLM.stream

    def stream(self: Any, messages: Any, params: Any) -> Iterator[Any]:
        for count, delta in enumerate(interrupted(self, messages, params)):
            if count == 2 and len(messages) == 1:
                raise KeyboardInterrupt
            yield delta

    monkeypatch.setattr(slipstream.LLM, "stream", stream)
    typing(monkeypatch, "the fox", KeyboardInterrupt, "go on")
    outcome = cli(*chat(world, "--ignore-eos"))
    assert outcome.code == 0
    assert outcome.out.count("(stopped)") == 1
    assert outcome.out.count("tok/s") == 1
    assert [len(turn) for turn in asked] == [1, 3]


def test_a_full_context_is_one_sentence_that_names_reset(cli: Cli, world: World, monkeypatch, asked):
    typing(monkeypatch, "fox " * 300, "/reset", "the dog")
    outcome = cli(*chat(world))
    assert outcome.code == 0
    assert len(outcome.errors) == 1
    assert "context" in outcome.errors[0]
    assert "/reset" in outcome.errors[0]
    assert [len(turn) for turn in asked] == [1, 1]


def test_what_cut_an_answer_is_said(cli: Cli, world: World, monkeypatch):
    typing(monkeypatch, "the fox")
    assert "cut at --max-tokens" in cli(*chat(world, "--ignore-eos")).out
    typing(monkeypatch, "the fox")
    assert "the context is full: /reset" in cli(*chat(world, "--ignore-eos", "--max-len", "28")).out


def test_a_terminal_sees_accepted_tokens_tinted(cli: Cli, world: World, monkeypatch):
    monkeypatch.setattr("slipstream.cli.chat.may_tint", lambda: True)
    typing(monkeypatch, "the lazy dog sleeps", "def main() -> None:")
    assert show.TINT in cli(*chat(world)).out
