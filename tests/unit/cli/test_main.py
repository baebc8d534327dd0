"""The door: fast help without torch, and one line for whatever is the user's to mend."""

import errno
import subprocess
import sys
import time
from typing import Any

import pytest

from slipstream import __version__
from slipstream.cli import main as door
from slipstream.cli import pull as pull_verb
from tests.unit.cli.world import Cli

HELP = """
import contextlib, io, sys
from slipstream.cli.main import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main({arguments})
sys.exit(any(name.partition('.')[0] in ('torch', 'transformers', 'numpy') for name in sys.modules))
"""
SECONDS = 2.0  # the promise is 0.5; a busy machine gets four times that


def python(code: str) -> int:
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_help_answers_soon_and_imports_neither_torch_nor_numpy():
    began = time.perf_counter()
    assert python(HELP.format(arguments=["--help"])) == 0
    assert time.perf_counter() - began < SECONDS


@pytest.mark.parametrize("verb", ["generate", "chat", "demo", "pull"])
def test_help_of_a_verb_imports_no_torch(verb: str):
    assert python(HELP.replace("'transformers', 'numpy'", "'transformers'").format(arguments=[verb, "--help"])) == 0


def test_help_lists_every_verb(cli: Cli):
    outcome = cli("--help")
    assert outcome.code == 0
    assert all(f" {verb} " in outcome.out for verb in door.VERBS)


def test_every_verb_of_the_table_can_be_called(cli: Cli):
    for name, verb in door.VERBS.items():
        calls = [[name]] if isinstance(verb, door.Verb) else [[name, inner] for inner in verb]
        for call in calls:
            assert cli(*call, "--help").code == 0


def test_the_version_is_printed(cli: Cli):
    assert cli("--version").out == f"slipstream {__version__}\n"


@pytest.mark.parametrize("arguments", [["nonsense"], ["generate", "--nonsense"], ["generate", "--steps", "four"]])
def test_a_wrong_command_line_exits_2(cli: Cli, arguments: list[str]):
    assert cli(*arguments).code == 2


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("a\nlong\n story"), 2, "error: a long story\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (BrokenPipeError(), 1, ""),
        (OSError(errno.ENOSPC, "No space left"), 1, "error: the disk is full; free some space\n"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x"),
            1,
            "error: /x: permission denied; choose another place, or change its owner\n",
        ),
    ],
    ids=["bad input", "Ctrl-C", "closed pipe", "full disk", "permission"],
)
def test_what_the_user_can_mend_is_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
):
    monkeypatch.setattr(pull_verb, "bring", raising(error))
    outcome = cli("pull", "smollm2-135m")
    assert (outcome.code, outcome.out, outcome.err) == (code, "", said)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), FileNotFoundError(errno.ENOENT, "a bug")])
def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, error: Exception):
    monkeypatch.setattr(pull_verb, "bring", raising(error))
    with pytest.raises(type(error), match="a bug"):
        door.main(["pull", "smollm2-135m"])


def test_pull_prints_where_the_model_lies(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pull_verb, "bring", lambda name: f"/cache/{name}")
    assert cli("pull", "smollm2-135m").out == "/cache/smollm2-135m\n"


def test_an_unknown_name_to_pull_is_refused(cli: Cli):
    outcome = cli("pull", "gpt-17")
    assert (outcome.code, len(outcome.errors)) == (2, 1)


def raising(error: BaseException) -> Any:
    def bring(name: str) -> None:
        raise error

    return bring
