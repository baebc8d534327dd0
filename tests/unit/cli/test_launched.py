"""The command line under torchrun: one rank runs the verb, the others follow; and the end of a group is one line."""

from typing import Any

import pytest

from slipstream.cli import generate as generate_verb
from slipstream.engine import follow as follow_module
from slipstream.parallel.watchdog import GroupError
from tests.unit.cli.world import Cli

LAUNCHER = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """This process is rank 1 of 2; the spots with which it followed."""
    for name, value in LAUNCHER.items():
        monkeypatch.setenv(name, value)
    followed: list[Any] = []
    monkeypatch.setattr(follow_module, "follow", lambda spot: followed.append(spot) or 3)
    return followed


def test_another_rank_follows_and_prints_nothing(cli: Cli, launched: list[Any]):
    outcome = cli("generate", "--prompt", "x", "--json")
    assert (outcome.code, outcome.out) == (3, "")
    assert [(spot.rank, spot.size) for spot in launched] == [(1, 2)]


def test_another_rank_follows_nobody_who_only_prints_help(cli: Cli, launched: list[Any]):
    assert cli("generate", "--help").code == 0
    assert launched == []


@pytest.mark.parametrize("call", [["pull", "x"], ["train"], ["demo"], ["bench", "cpu"], ["doctor", "nccl"]])
def test_a_verb_that_knows_no_ranks_refuses_a_launcher(cli: Cli, launched: list[Any], call: list[str]):
    outcome = cli(*call)
    assert (outcome.code, len(outcome.errors), launched) == (2, 1, [])
    assert "start it without torchrun" in outcome.errors[0]


def test_a_launcher_without_a_port_is_refused(cli: Cli, launched: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MASTER_PORT", "0")
    assert "torchrun --standalone" in cli("generate", "--prompt", "x").errors[0]


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many', which is no number"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http', which is no number"),
        ({"RANK": "2"}, "RANK is 2 but WORLD_SIZE 2"),
    ],
)
def test_what_no_launcher_would_say_is_refused(
    cli: Cli, launched: list[Any], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], reason: str
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    outcome = cli("generate", "--prompt", "x")
    assert (outcome.code, len(outcome.errors), launched) == (2, 1, [])
    assert reason in outcome.errors[0]


def test_several_drafts_are_refused_under_a_launcher(cli: Cli, launched: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "0")
    outcome = cli("bench", "acceptance", "--draft", "a", "--draft", "b")
    assert (outcome.code, len(outcome.errors)) == (2, 1)
    assert "serve one draft" in outcome.errors[0]


def test_the_end_of_a_group_is_one_line_and_code_1(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise GroupError("rank 1 (pid 7 on host a) has ended;\nthe group ends. Restart it")

    monkeypatch.setattr(generate_verb, "chosen_entries", fail)
    outcome = cli("generate", "--prompt", "x")
    assert outcome.code == 1
    assert outcome.err == "error: rank 1 (pid 7 on host a) has ended; the group ends. Restart it\n"
