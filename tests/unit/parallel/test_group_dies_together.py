"""Three real processes: whatever happens to one, all end within the limit and a few seconds, and say why."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.patience import patience
from tests.unit.parallel.ranks import LIMITS, await_text, publish

SIZE = 3
FEW_S = 6.0  # beyond the limit: grace, exits, and a busy machine


class Ranks:
    """The processes, their folder and what they wrote to stderr."""

    def __init__(self, folder: Path, host_names: list[str]) -> None:
        self.folder = folder
        self.errors = [folder / f"stderr-{rank}" for rank in range(SIZE)]
        self.processes = [self._start(rank, host_names) for rank in range(SIZE)]

    def _start(self, rank: int, host_names: list[str]) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tests.unit.parallel.ranks", str(self.folder), str(rank), str(SIZE)]
        with self.errors[rank].open("wb") as stderr:
            return subprocess.Popen([*command, json.dumps(host_names)], stderr=stderr)

    def wait_until_ready(self) -> None:
        for rank in range(SIZE):
            await_text(self.folder / f"ready-{rank}")
        time.sleep(0.3)  # a few cycles

    def signal(self, rank: int, number: int) -> None:
        self.processes[rank].send_signal(number)

    def order(self, rank: int, what: str) -> None:
        publish(self.folder / f"do-{rank}", what)

    def wait_for_end(self, seconds: float) -> list[int]:
        ends = time.monotonic() + patience(seconds)
        return [each.wait(timeout=max(0.01, ends - time.monotonic())) for each in self.processes]

    def sentence(self, rank: int) -> str:
        """The one line of stderr that says why; there must be one."""
        lines = [line for line in self.errors[rank].read_text().splitlines() if "the group ends" in line]
        assert len(lines) == 1, self.errors[rank].read_text()
        return lines[0]

    def rings(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "rings").glob("*"))

    def end(self) -> None:
        for each in self.processes:
            each.kill()
            each.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    started: list[Ranks] = []

    def start_ranks(host_names: tuple[str, ...] = ()) -> Ranks:
        started.append(Ranks(tmp_path, list(host_names)))
        started[-1].wait_until_ready()
        return started[-1]

    yield start_ranks
    for each in started:
        each.end()


def check_sentence(sentence: str, rank: int, what: str) -> None:
    pattern = rf"rank {rank} \(pid \d+ on host \S+\) {what}.* at cycle \d+, stage (idle|propose|verify|accept)"
    assert re.search(pattern, sentence), sentence
    assert int(re.search(r"at cycle (\d+)", sentence)[1]) > 1


@pytest.mark.parametrize("rank", range(SIZE))
def test_a_killed_rank_ends_the_group(start: Callable[..., Ranks], rank: int) -> None:
    ranks = start()
    ranks.signal(rank, signal.SIGKILL)
    codes = ranks.wait_for_end(FEW_S)
    others = [each for each in range(SIZE) if each != rank]
    assert codes[rank] == -signal.SIGKILL
    assert [codes[each] for each in others] == [1, 1]
    for each in others:
        check_sentence(ranks.sentence(each), rank, "has ended")
        assert f"rank{each}.jsonl" in ranks.sentence(each)
    assert ranks.rings() == [f"rank{each}.jsonl" for each in others]


@pytest.mark.parametrize("rank", range(SIZE))
def test_a_stopped_rank_ends_the_group_and_is_ended_with_it(start: Callable[..., Ranks], rank: int) -> None:
    ranks = start()
    ranks.signal(rank, signal.SIGSTOP)
    codes = ranks.wait_for_end(LIMITS.limit_s + FEW_S)
    others = [each for each in range(SIZE) if each != rank]
    assert codes[rank] == -signal.SIGKILL
    assert [codes[each] for each in others] == [1, 1]
    for each in others:
        check_sentence(ranks.sentence(each), rank, r"stopped answering for 1\.\d+ s")
    assert ranks.rings() == [f"rank{each}.jsonl" for each in others]


@pytest.mark.parametrize("rank", [0, 2])
def test_an_exception_in_one_rank_is_what_all_ranks_report(start: Callable[..., Ranks], rank: int) -> None:
    ranks = start()
    ranks.order(rank, "raise")
    codes = ranks.wait_for_end(LIMITS.limit_s + FEW_S)
    assert codes == [1, 1, 1]
    for each in range(SIZE):
        check_sentence(ranks.sentence(each), rank, "failed")
        assert "stage verify: OSError: the disk of rank is on fire" in ranks.sentence(each)
    assert ranks.rings() == [f"rank{each}.jsonl" for each in range(SIZE)]


def test_a_rank_that_makes_no_progress_ends_the_group(start: Callable[..., Ranks]) -> None:
    ranks, rank = start(), 1
    ranks.order(rank, "hang")
    codes = ranks.wait_for_end(LIMITS.limit_s + FEW_S)
    assert codes == [1, 1, 1]
    for each in range(SIZE):
        check_sentence(ranks.sentence(each), rank, r"made no progress for 1\.2 s")


def test_ctrl_c_ends_a_group_whose_main_threads_are_stuck(start: Callable[..., Ranks]) -> None:
    ranks = start()
    for rank in range(SIZE):
        ranks.order(rank, "hang")
    await_text(ranks.folder / "hangs-0")
    ranks.signal(0, signal.SIGINT)
    codes = ranks.wait_for_end(LIMITS.interrupt_s + FEW_S)
    assert codes == [130, 1, 1], [ranks.sentence(rank) for rank in range(SIZE)]
    check_sentence(ranks.sentence(0), 0, "was interrupted")
    assert ranks.rings() == [f"rank{each}.jsonl" for each in range(SIZE)]


def test_a_stopped_rank_of_another_host_ends_when_it_continues(start: Callable[..., Ranks]) -> None:
    ranks = start(("a", "a", "b"))
    ranks.signal(2, signal.SIGSTOP)
    for rank in (0, 1):
        assert ranks.processes[rank].wait(timeout=LIMITS.limit_s + FEW_S) == 1
    assert os.path.exists(f"/proc/{ranks.processes[2].pid}")  # nobody of its own host could end it
    ranks.signal(2, signal.SIGCONT)
    assert ranks.processes[2].wait(timeout=FEW_S) == 1
    check_sentence(ranks.sentence(2), 2, "(stopped answering|was stopped)")


def test_a_group_that_was_stopped_as_a_whole_goes_on(start: Callable[..., Ranks]) -> None:
    ranks = start()
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for rank in range(SIZE):
            ranks.signal(rank, number)
        time.sleep(LIMITS.limit_s + 0.5)
    for rank in range(SIZE):
        ranks.order(rank, "leave")
    assert ranks.wait_for_end(FEW_S) == [0, 0, 0]
