"""A rank that fails on purpose: `python -m tests.faults.rank leader|follower FOLDER`, as FOLDER/plan.json says.

Rank 0 runs what a user would write, one of SCRIPTS; the ranks that it spawns run this file too. The fault happens on
the main thread, right after the stage has been marked.
"""

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from slipstream.parallel.process import start_ticks

FIRST_WORDS = "the quick brown fox"
LONG, SHORT = 200, 12  # tokens of an answer
BETWEEN_S = 0.5  # from the end of an answer until the fault of an idle rank
IDLE_S = 60.0  # longer than any group may live after a fault
MARKED_CYCLE = 3  # from here on a test may interrupt


class How(StrEnum):
    """What happens to a rank."""

    KILL = "kill"
    STOP = "stop"
    RAISE = "raise"
    VALUE = "value"  # the exception that elsewhere speaks to the user
    MEMORY = "memory"
    EXIT = "exit"  # before it joins, with code 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Which rank fails, how and where; "idle" means between two requests, "start" before it joins, "join" meanwhile."""

    rank: int
    how: How
    stage: str
    cycle: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the group is to do."""

    model: str
    draft: str
    script: str = "answer"
    draft_tp: str = "replicated"
    watchdog_s: float = 2.0
    max_tokens: int = LONG
    fault: Fault | None = None
    arguments: tuple[str, ...] = ()  # of the command line

    def write(self, folder: Path) -> None:
        (folder / "plan.json").write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(folder: Path) -> "Plan":
        fields = json.loads((folder / "plan.json").read_text())
        fault = fields.pop("fault")
        if fault is not None:
            fault = Fault(**{**fault, "how": How(fault["how"])})
        return Plan(**{**fields, "fault": fault, "arguments": tuple(fields["arguments"])})


class Notes:
    """Files that tell the test how far the ranks are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, value: Any = None) -> None:
        """Leave a JSON file that appears whole."""
        partial = self.folder / f".{name}.{os.getpid()}"
        partial.write_text(json.dumps(value))
        partial.rename(self.folder / name)


def strike(how: How, notes: Notes) -> None:
    """Let the fault happen to this process."""
    notes.write("struck", time.time())
    if how is How.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if how is How.STOP:
        os.kill(os.getpid(), signal.SIGSTOP)
    if how is How.RAISE:
        raise RuntimeError("a fault on purpose")
    if how is How.VALUE:
        raise ValueError("a fault on purpose")
    if how is How.MEMORY:
        import torch

        raise torch.OutOfMemoryError("CUDA out of memory: a fault on purpose")
    if how is How.EXIT:
        raise SystemExit(3)


def arm(rank: int, plan: Plan, notes: Notes) -> None:
    """Make the stamps of this process carry out the fault, if it is this rank's; rank 0's tell of the cycles."""
    from slipstream.parallel.stamps import Stamps

    fault, mark = plan.fault, Stamps.mark

    def mark_and_fail(stamps: Stamps, stage: Any) -> None:
        mark(stamps, stage)
        cycle, name = stamps.read()[0], stage.name.lower()
        if rank == 0 and cycle == MARKED_CYCLE and name == "verify":
            notes.write("cycling")
        if fault is not None and (fault.rank, fault.stage, fault.cycle) == (rank, name, cycle) and name != "idle":
            strike(fault.how, notes)

    Stamps.mark = mark_and_fail
    if fault is not None and (fault.rank, fault.stage) == (rank, "join"):
        Stamps.__init__ = lambda stamps: strike(fault.how, notes)  # made once rank 0 is connected
    if fault is not None and fault.rank == rank > 0 and fault.stage == "idle":
        fail_between_requests(fault, notes)


def fail_between_requests(fault: Fault, notes: Notes) -> None:
    """A follower's idle fault: after it has forgotten a request, before it hears of the next."""
    from slipstream.runner.rank import Rank

    carry_out = Rank.carry_out

    def carry_out_and_fail(rank: Rank, order: object) -> Any:
        result = carry_out(rank, order)
        if type(order).__name__ == "Release":
            time.sleep(BETWEEN_S)
            strike(fault.how, notes)
        return result

    Rank.carry_out = carry_out_and_fail


# ---------------------------------------------------------------------------------------------- what a user's code does


def answer(plan: Plan, notes: Notes) -> None:
    """One answer, then nothing for a while."""
    llm = load(plan, notes)
    generate(llm, plan.max_tokens)
    notes.write("idle")
    time.sleep(BETWEEN_S)
    if plan.fault is not None and (plan.fault.rank, plan.fault.stage) == (0, "idle"):
        strike(plan.fault.how, notes)
    time.sleep(IDLE_S)


def answer_again(plan: Plan, notes: Notes) -> None:
    """The user catches the failure, and asks again."""
    from slipstream.parallel.watchdog import GroupError

    llm, found = load(plan, notes), []
    for _ in range(2):
        began = time.monotonic()
        try:
            generate(llm, plan.max_tokens)
        except GroupError as error:
            found.append((str(error), time.monotonic() - began))
    llm.close()
    notes.write("found", found)


def stumble(plan: Plan, notes: Notes) -> None:
    """The user's own code fails between two cycles; the same LLM then answers as if nothing had been. It stays open."""
    llm = load(plan, notes)
    wanted = generate(llm)

    def on_finish(index: int, completion: Any) -> None:
        raise ZeroDivisionError("the user's")

    try:
        generate(llm, on_finish=on_finish)
    except ZeroDivisionError:
        notes.write("found", [wanted, generate(llm), llm.engine.busy])


def close_and_ask(plan: Plan, notes: Notes) -> None:
    """The user asks an LLM that was closed, and closes it once more."""
    llm = load(plan, notes)
    llm.close()
    try:
        generate(llm)
    except Exception as error:
        notes.write("found", [type(error).__name__, str(error)])
    llm.close()


def start_again(plan: Plan, notes: Notes) -> None:
    """Another LLM: beside one, which is refused; after one was closed, on another thread; after one was lost."""
    from slipstream.parallel.watchdog import GroupError

    llm = load(plan, notes)
    wanted, began = generate(llm), time.monotonic()
    try:
        load(plan, notes)
    except ValueError as error:
        refusal = str(error)
    refused_s = time.monotonic() - began
    closer = threading.Thread(target=llm.close)
    closer.start()
    closer.join()
    llm = load(plan, notes)
    found = [generate(llm)]
    llm.engine.executor.membership.children[0].process.kill()
    try:
        generate(llm, plan.max_tokens)
    except GroupError:
        llm = load(plan, notes)
        found.append(generate(llm))
    notes.write("found", [refusal, refused_s, [wanted, wanted] == found])


def stop_an_answer(plan: Plan, notes: Notes) -> None:
    """The user presses Ctrl-C in the middle of a cycle, and asks again."""
    llm = load(plan, notes)
    wanted = generate(llm, plan.max_tokens)
    notes.write("interrupt me")
    try:
        while True:
            generate(llm, plan.max_tokens)
    except KeyboardInterrupt:
        notes.write("found", [wanted, generate(llm, plan.max_tokens)])


def forget(plan: Plan, notes: Notes) -> None:
    """The user drops the LLM and goes on."""
    llm = load(plan, notes)
    generate(llm)
    del llm
    gc.collect()
    notes.write("idle")
    time.sleep(2 * plan.watchdog_s)


def command_line(plan: Plan, notes: Notes) -> None:
    """`slipstream ...`, as a shell runs it."""
    from slipstream.cli.main import main as slipstream

    slipstream(plan.arguments)


SCRIPTS: dict[str, Callable[[Plan, Notes], None]] = {
    each.__name__: each
    for each in (answer, answer_again, stumble, close_and_ask, start_again, stop_an_answer, forget, command_line)
}


def load(plan: Plan, notes: Notes) -> Any:
    """The LLM of a plan."""
    from slipstream import LLM

    llm = LLM(
        plan.model, draft=plan.draft, device="cpu", tp=2, draft_tp=plan.draft_tp, watchdog_s=plan.watchdog_s, steps=3
    )
    notes.write("loaded", llm.engine.executor.membership.spot.port)
    return llm


def generate(llm: Any, max_tokens: int = SHORT, **others: Any) -> list[int]:
    """A greedy answer's tokens."""
    from slipstream import SamplingParams

    return llm.generate(FIRST_WORDS, SamplingParams(max_tokens=max_tokens, ignore_eos=True), **others)[0].token_ids


def lead(folder: Path, plan: Plan, notes: Notes) -> None:
    """Be rank 0: run a script, with followers that run this file."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell hands SIG_IGN down
    from slipstream.engine import group

    group.follower_command = lambda: [sys.executable, "-m", "tests.faults.rank", "follower", str(folder)]
    arm(0, plan, notes)
    SCRIPTS[plan.script](plan, notes)


def follow(plan: Plan, notes: Notes) -> None:
    """Be another rank: what slipstream's own followers do, and note the exit code."""
    rank = int(os.environ["RANK"])
    if plan.fault is not None and (plan.fault.rank, plan.fault.stage) == (rank, "start"):
        strike(plan.fault.how, notes)
    from slipstream.engine.follow import main

    arm(rank, plan, notes)
    try:
        main()
    except SystemExit as end:
        notes.write(f"code-{rank}", end.code)
        raise


def run(role: str, folder: Path) -> None:
    plan, notes = Plan.read(folder), Notes(folder)
    rank = 0 if role == "leader" else int(os.environ["RANK"])
    notes.write(f"rank-{rank}", [os.getpid(), start_ticks(os.getpid())])
    if role == "leader":
        lead(folder, plan, notes)
    else:
        follow(plan, notes)


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
