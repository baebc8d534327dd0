"""Run a group that fails on purpose, and look at what it leaves behind."""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.parallel import process
from tests.faults.rank import Fault, How, Plan
from tests.patience import patience
from tests.unit.cli.world import World

START_S = 90.0  # for two processes to import torch and load, on a machine that runs other tests too
SLACK_S = 6.0  # beyond the watchdog's limit: the grace, the exits, and a busy machine
SIZE = 2
SET_CHILD_SUBREAPER = 36  # prctl: orphans of our children become ours, so that their exit codes can be read
SENTENCE = (
    r"rank (?P<rank>\d) \(pid \d+ on host \S+\)"
    r" (?P<what>has ended|stopped answering for [\d.]+ s|made no progress for [\d.]+ s|failed|was interrupted).*?"
    r" at cycle (?P<cycle>\d+), stage (?P<stage>[a-z]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a sentence of the group names."""

    rank: int
    what: str
    cycle: int
    stage: str


class Group:
    """Rank 0, whom it spawned, and their notes."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        plan.write(folder)
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1)
        self.folder, self.plan, self.codes = folder, plan, dict[int, int | None]()
        environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.faults.rank", "leader", str(folder)]
        self.began = time.monotonic()
        with (folder / "stderr").open("wb") as stderr, (folder / "stdout").open("wb") as stdout:
            self.leader = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, process_group=0
            )

    @property
    def stderr(self) -> str:
        """What all ranks said."""
        return (self.folder / "stderr").read_text(errors="replace")

    def note(self, name: str, seconds: float = START_S) -> Any:
        """What a rank noted; waits for it, as long as rank 0 lives."""
        path, ends = self.folder / name, time.monotonic() + seconds
        while not path.exists():
            assert time.monotonic() < ends, f"no {name} within {seconds:g} s\n{self.stderr}"
            if self.leader.poll() is not None and not path.exists():
                raise AssertionError(f"rank 0 ended with {self.leader.returncode} before {name}\n{self.stderr}")
            time.sleep(0.01)
        return json.loads(path.read_text())

    def interrupt(self) -> float:
        """Press Ctrl-C; when that was."""
        os.killpg(self.leader.pid, signal.SIGINT)
        return time.time()

    def wait(self, since: float | None, limit_s: float) -> float:
        """Wait until every rank has ended; seconds since a moment, or since the fault struck."""
        limit_s = patience(limit_s)
        began = time.time() if since is None and not self._struck() else since or self._struck()
        while not all(self._ended(rank) for rank in range(SIZE)):
            assert time.time() < began + limit_s, f"{self._alive()} still there after {limit_s:g} s\n{self.stderr}"
            time.sleep(0.02)
        return time.time() - began

    def sentences(self) -> list[Said]:
        """Every sentence that says why the group ends."""
        found = (re.search(SENTENCE, line) for line in self.stderr.splitlines() if "the group ends" in line)
        return [
            Said(rank=int(each["rank"]), what=each["what"], cycle=int(each["cycle"]), stage=each["stage"])
            for each in found
            if each is not None
        ]

    def rings(self) -> dict[int, list[dict[str, Any]]]:
        """The last decisions that were written: of each rank the header, then the decisions."""
        files = self.folder.glob("slipstream-*/rank*.jsonl")
        return {int(file.stem[4:]): [json.loads(line) for line in file.read_text().splitlines()] for file in files}

    def end(self) -> None:
        """Leave nothing, whatever the test found."""
        for rank in range(SIZE):
            if (self.folder / f"rank-{rank}").exists():
                process.kill(*self.process(rank))
        if self.leader.poll() is None:
            self.leader.kill()
        self.leader.communicate()

    def process(self, rank: int) -> tuple[int, int]:
        pid, started = json.loads((self.folder / f"rank-{rank}").read_text())
        return pid, started

    def _struck(self) -> float | None:
        path = self.folder / "struck"
        return json.loads(path.read_text()) if path.exists() else None

    def _ended(self, rank: int) -> bool:
        if rank == 0:
            self.codes[0] = self.leader.poll()
            return self.codes[0] is not None
        if not (self.folder / f"rank-{rank}").exists():
            return self.leader.returncode is not None
        pid, started = self.process(rank)
        if not process.is_gone(pid, started) or self.leader.returncode is None:
            return False
        with suppress(ChildProcessError):  # rank 0 has read its code; what it says itself is left
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended == 0:  # some of its threads are left
                return False
            self.codes[rank] = os.waitstatus_to_exitcode(status)
        note = self.folder / f"code-{rank}"
        if note.exists():
            self.codes.setdefault(rank, json.loads(note.read_text()))
        return True

    def _alive(self) -> list[str]:
        return [f"rank {rank}" for rank in range(SIZE) if not self._ended(rank)]


def run_fault(group: Group, fault: Fault) -> float:
    """Wait for a fault and its end; check everything that must hold after any fault. Seconds that it took."""
    port = group.note("loaded")
    group.note("struck")
    seconds = group.wait(None, group.plan.watchdog_s + SLACK_S)
    check_codes(group, fault)
    if not (fault.rank == 0 and fault.stage == "idle" and fault.how is How.RAISE):  # that one is the user's own
        check_sentences(group, fault)
        check_rings(group, fault)
    check_port(port)
    return seconds


def check_codes(group: Group, fault: Fault) -> None:
    is_users = fault.rank == 0 and fault.stage == "idle" and fault.how is How.RAISE
    assert group.codes[0] != 0, group.stderr
    assert is_users or group.codes.get(1) != 0, group.stderr
    if fault.rank == 0 and fault.how in (How.KILL, How.STOP):
        assert group.codes[0] == -signal.SIGKILL


def check_sentences(group: Group, fault: Fault) -> None:
    """One sentence names the rank, the cycle and the stage, and no line says otherwise."""
    said = group.sentences()
    assert said, group.stderr
    what = {How.KILL: "has ended", How.STOP: "stopped answering"}.get(fault.how, "failed")
    for each in said:
        assert (each.rank, each.stage) == (fault.rank, fault.stage), group.stderr
        assert each.what.startswith(what), group.stderr
        assert each.cycle == fault.cycle or fault.stage == "idle", group.stderr


def check_rings(group: Group, fault: Fault) -> None:
    """Every rank that could still write has written its last decisions."""
    rings, lost = group.rings(), fault.how in (How.KILL, How.STOP)
    assert sorted(rings) == [rank for rank in range(SIZE) if not (lost and rank == fault.rank)], group.stderr
    for rank, (header, *decisions) in rings.items():
        assert header["rank"] == rank
        assert f"rank {fault.rank} " in header["reason"]
        assert header["decisions"] == len(decisions) > 0
        assert all({"cycle", "stage", "request"} <= decision.keys() for decision in decisions)


def check_port(port: int) -> None:
    """Nobody holds the port in which the ranks met."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen()


def plan_for(world: World, fault: Fault | None = None, **others: Any) -> Plan:
    """A plan with the tiny models."""
    return replace(Plan(model=world.model, draft=world.draft, fault=fault), **others)
