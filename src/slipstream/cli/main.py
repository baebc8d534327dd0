"""`slipstream VERB`: a table of verbs, each loaded when it is called, so that --help needs neither torch nor time.

A verb is a function whose annotations typer reads; the table says which module holds it. Whatever a verb raises for the
user ends here as one line on stderr: ValueError with exit code 2, a refusal of the system and the end of a group of
ranks with 1, Ctrl-C with 130. Anything else is a bug and keeps its traceback.

Under torchrun every rank runs the same command line: rank 0 runs the verb, the others do what rank 0's engine says.
"""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

import slipstream
from slipstream.parallel.spot import launched_spot
from slipstream.parallel.watchdog import GroupError

BAD_INPUT, REFUSED, INTERRUPTED = 2, 1, 130
REFUSALS = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EACCES: "permission denied; choose another place, or change its owner",
    errno.EPERM: "permission denied; choose another place, or change its owner",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EISDIR: "it is a folder; name a file in it",
    errno.ENOTDIR: "a part of the path is a file; choose another place",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """Where a verb's function lies."""

    module: str
    function: str
    help: str
    alone: bool = False  # it knows no ranks, so a launcher must not start several


VERBS: Mapping[str, Verb | Mapping[str, Verb]] = {
    "generate": Verb(module="generate", function="generate", help="Answer a prompt or a file of prompts."),
    "chat": Verb(module="chat", function="chat", help="Talk with a model; accepted draft tokens are tinted."),
    "serve": Verb(module="serve", function="serve", help="Answer OpenAI's HTTP interface."),
    "demo": Verb(
        module="demo", function="demo", help="Watch a real model answer, plainly and speculatively.", alone=True
    ),
    "pull": Verb(module="pull", function="pull", help="Bring a model to this machine.", alone=True),
    "train": Verb(module="train", function="train", help="Train a draft for a model.", alone=True),
    "profile": Verb(module="profile", function="profile", help="Where a cycle's time goes, and what to change."),
    "tune": Verb(module="tune", function="tune", help="Find the fastest steps, tree and placement for each batch."),
    "plan": Verb(
        module="plan", function="plan", help="Would it pay on other hardware? A forecast with intervals.", alone=True
    ),
    "bench": {
        "acceptance": Verb(module="bench", function="acceptance", help="Accept length over a set of prompts."),
        "cpu": Verb(
            module="bench", function="cpu", help="Plain and speculative speed beside transformers'.", alone=True
        ),
        "latency": Verb(
            module="bench_latency",
            function="bench_latency",
            help="Plain step and cycle over K, batch and context, beside the memory's floor.",
        ),
        "load": Verb(
            module="bench_load", function="bench_load", help="Loading beside what the storage gives.", alone=True
        ),
        "placement": Verb(
            module="bench_placement",
            function="bench_placement",
            help="Where the draft should live, and how many steps pay, as the wire gets slower.",
        ),
        "serving": Verb(
            module="bench_serving",
            function="bench_serving",
            help="Any OpenAI-compatible server under load: TTFT, TPOT, ITL, throughput, accept length.",
            alone=True,
        ),
    },
    "doctor": {
        "nccl": Verb(
            module="doctor", function="nccl", help="Links between GPUs, all-reduce latency, what to set.", alone=True
        ),
        "check": Verb(
            module="doctor_check",
            function="check",
            help="Machine, compatibility and wiring: `slipstream doctor --model M` is short for it.",
            alone=True,
        ),
        "lossless": Verb(
            module="doctor_lossless",
            function="lossless",
            help="Prove that speculation changes no token, on your own model and prompts.",
        ),
    },
}
GROUP_HELP = {
    "bench": "Measure, and print what was measured under its name.",
    "doctor": "Examine this machine, a target and its draft, and say what to set.",
}
UNNAMED = {"doctor": "check"}  # which verb of a group options belong to that name none


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; it always ends in SystemExit."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot write a character shows another
    program()(args=arguments, prog_name="slipstream")


def program() -> TyperGroup:
    """Build the group of all verbs; none of them is loaded."""
    app = typer.Typer(cls=Door, no_args_is_help=True, add_completion=False)
    app.callback()(_root)
    return _fill(get_group(app), VERBS)


def _fill(group: TyperGroup, table: Mapping[str, Verb | Mapping[str, Verb]]) -> TyperGroup:
    for name, verb in table.items():
        if isinstance(verb, Verb):
            group.add_command(LazyVerb(name, verb), name)
            continue
        nested = Nested(name=name, help=GROUP_HELP[name], no_args_is_help=True)
        group.add_command(_fill(nested, verb), name)
    return group


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slipstream {slipstream.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """EAGLE-3 speculative decoding: measured, explained, lossless."""


class Nested(TyperGroup):
    """A group of verbs; options may belong to one that need not be named."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        unnamed = UNNAMED.get(self.name or "")
        if unnamed is not None and args and args[0].startswith("-") and args[0] != "--help":
            args = [unnamed, *args]
        return super().make_context(info_name, args, parent=parent, **extra)


class LazyVerb(TyperCommand):
    """A verb's name and help, which becomes the verb when it is called."""

    def __init__(self, name: str, verb: Verb) -> None:
        super().__init__(name, help=verb.help)
        self.verb = verb

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        spot = launched_spot()
        if spot is not None and self.verb.alone:
            raise ValueError(f"`slipstream {self.name}` runs in one process; start it without torchrun")
        if spot is not None and spot.rank > 0:
            raise SystemExit(0 if "--help" in args else import_module("slipstream.engine.follow").follow(spot))
        _refuse_file_of_json(args)
        return self.load().make_context(info_name, args, parent=parent, **extra)

    def load(self) -> Any:
        """Import the verb and let typer read its options."""
        function = getattr(import_module(f"slipstream.cli.{self.verb.module}"), self.verb.function)
        app = typer.Typer(add_completion=False)
        app.command(self.name)(function)
        return get_command(app)


def _refuse_file_of_json(args: Sequence[str]) -> None:
    """Raises ValueError for a file after --json, where two verbs used to take one."""
    for option, after in pairwise(args):
        if option == "--json" and not after.startswith("-"):
            raise ValueError(f"--json prints and takes no file; write one with --out {after}, or with > {after}")


class Door(TyperGroup):
    """The outermost group: errors that speak to the user are said in one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _close_pipe()
            raise typer.Exit(REFUSED) from None
        except KeyboardInterrupt:
            raise _say("interrupted", INTERRUPTED) from None
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            place = f"{error.filename}: " if error.filename else ""
            raise _say(f"error: {place}{REFUSALS[error.errno]}", REFUSED) from None
        except ValueError as error:
            raise _say(f"error: {error}", BAD_INPUT) from None
        except GroupError as error:
            raise _say(f"error: {error}", REFUSED) from None
        return result


def _say(sentence: str, code: int) -> typer.Exit:
    """Print one line on stderr, whatever the sentence holds."""
    print(" ".join(sentence.split()), file=sys.stderr)
    return typer.Exit(code)


def _close_pipe() -> None:
    """Nobody reads stdout any more: what is left in its buffer goes nowhere, quietly."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
