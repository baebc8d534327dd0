"""Watchdogs of one process: real datagrams, a clock that stands still, and nobody is ended for real."""

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.parallel.heartbeat import Peer, new_token, open_socket, this_peer
from slipstream.parallel.ring import DecisionRing
from slipstream.parallel.roll import Limits
from slipstream.parallel.stamps import Stage, Stamps
from slipstream.parallel.watchdog import GroupError, Watchdog
from slipstream.telemetry.clock import Clock, ManualClock

LIMITS = Limits(interval_s=0.2, limit_s=10, load_limit_s=100, grace_s=2, interrupt_s=4)
FAST = replace(LIMITS, interval_s=0.02)


class Trio:
    """Three ranks on three hosts, so that they do not look for each other's process."""

    def __init__(self, folder: Path, *, limits: Limits = LIMITS, clock: Clock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.stamps = [Stamps() for _ in range(3)]
        self.codes: list[list[int]] = [[], [], []]
        self.told: list[list[str]] = [[], [], []]
        self.folder = folder
        socks = [open_socket("127.0.0.1") for _ in range(3)]
        self.group: list[Peer] = [
            replace(this_peer(rank, sock, self.stamps[rank]), host_name=f"host{rank}", pid=100 + rank)
            for rank, sock in enumerate(socks)
        ]
        token = new_token()
        self.dogs = [
            Watchdog(
                rank,
                self.group,
                sock=sock,
                token=token,
                stamps=self.stamps[rank],
                ring=DecisionRing(),
                ring_path=folder,
                limits=limits,
                on_failure=self.told[rank].append,
                clock=self.clock,
                end_process=self.codes[rank].append,
            )
            for rank, sock in enumerate(socks)
        ]

    def pass_time(self, seconds: float, *, without: tuple[int, ...] = ()) -> None:
        """Let the watchdogs look every 0.2 s."""
        for _ in range(round(seconds / 0.2)):
            self.clock.advance(0.2)
            for rank, dog in enumerate(self.dogs):
                if rank not in without:
                    dog.tick()

    def close(self) -> None:
        """Leave nothing behind, not even a thread that still ends the rest."""
        for dog in self.dogs:
            dog._accounted = True
            dog.stop()
            dog._stopping = True
            dog._bell.ring()
            if dog._thread.is_alive():
                dog._thread.join()
            dog._close()

    def failures(self) -> list[str]:
        return [dog.failure or "" for dog in self.dogs]


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    made = Trio(tmp_path)
    made.pass_time(0.4)
    yield made
    made.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Trio]:
    """The same with threads and a clock that runs."""
    made = Trio(tmp_path, limits=FAST, clock=Clock())
    for dog in made.dogs:
        dog.start()
    for dog in made.dogs:
        dog.wait_for_all(10)
    yield made
    made.close()


def test_idle_ranks_wait_for_ever(trio):
    trio.pass_time(60)
    assert trio.failures() == ["", "", ""]
    assert trio.codes == [[], [], []]


def test_a_silent_rank_is_named_by_all_others_with_its_cycle_and_stage(trio):
    trio.stamps[1].begin(17)
    trio.stamps[1].mark(Stage.VERIFY)
    trio.pass_time(0.2)
    trio.pass_time(11, without=(1,))
    expected = "rank 1 (pid 101 on host host1) stopped answering for 10"
    for rank in (0, 2):
        assert trio.dogs[rank].failure.startswith(expected)
        assert "at cycle 17, stage verify" in trio.dogs[rank].failure
        assert trio.dogs[rank].failure.endswith(f"; last decisions: {trio.folder / f'rank{rank}.jsonl'}")
        assert (trio.folder / f"rank{rank}.jsonl").exists()
        assert trio.told[rank] == [trio.dogs[rank].failure]


def test_a_main_thread_that_does_not_notice_is_ended_rank_0_last(trio, capfd):
    trio.pass_time(10.8, without=(1,))
    assert trio.dogs[0].failure
    trio.pass_time(2, without=(1,))
    assert trio.codes == [[], [], [1]]
    trio.pass_time(1.2, without=(1,))
    assert trio.codes == [[1], [], [1]]
    trio.pass_time(5, without=(1,))
    assert trio.codes == [[1], [], [1]]
    assert capfd.readouterr().err.splitlines() == [f"slipstream: {trio.dogs[rank].failure}" for rank in (2, 0)]


def test_a_rank_that_was_stopped_and_continues_hears_that_it_was_given_up(trio):
    trio.pass_time(11, without=(1,))
    trio.pass_time(0.6)
    assert trio.dogs[1].failure.startswith("rank 1 (pid 101 on host host1) stopped answering")
    trio.pass_time(2.2)
    assert trio.codes[1] == [1]


def test_a_rank_that_continues_after_all_have_ended_ends_too(tmp_path):
    trio = Trio(tmp_path)
    trio.pass_time(0.4)
    for rank in (0, 2):
        trio.dogs[rank].tick = lambda: None  # the end of their process: not even a farewell
    trio.clock.advance(60)
    trio.pass_time(3)
    assert "was stopped for 60 s" in trio.dogs[1].failure
    trio.close()


def test_time_in_which_a_rank_slept_is_not_held_against_the_others(trio):
    trio.clock.advance(9)
    trio.pass_time(2, without=(2,))
    assert trio.failures() == ["", "", ""]


def test_a_stuck_rank_is_reported_by_all_alike(trio):
    for rank in range(3):
        trio.stamps[rank].begin(5)
        trio.stamps[rank].mark(Stage.PROPOSE if rank == 2 else Stage.VERIFY)
    trio.pass_time(11)
    sentences = {sentence.partition("; last")[0] for sentence in trio.failures()}
    assert sentences == {
        "rank 2 (pid 102 on host host2) made no progress for 10 s at cycle 5, stage propose; the group ends. Restart it"
    }


def test_a_rank_that_leaves_is_not_a_dead_one(trio):
    trio.dogs[2].stop()
    trio.pass_time(30, without=(2,))
    assert trio.failures() == ["", "", ""]


def test_an_announced_failure_is_what_the_others_report(trio):
    trio.stamps[2].begin(3)
    trio.stamps[2].mark(Stage.EXTEND)
    error = trio.dogs[2].announce_failure("out of memory")
    assert "rank 2 (pid 102 on host host2) failed at cycle 3, stage extend: out of memory" in str(error)
    trio.pass_time(0.6)
    for sentence in trio.failures():
        assert sentence.partition("; last")[0] == str(error).partition("; last")[0]
    trio.pass_time(4)
    assert trio.codes == [[1], [1], []]  # rank 2 ends in its own way
    trio.pass_time(2)
    assert trio.codes == [[1], [1], [1]]  # unless it hangs


def test_an_unwritable_folder_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    trio = Trio(tmp_path / "file")
    error = trio.dogs[0].announce_failure("no")
    assert str(error).endswith(f"; the last decisions could not be written to {tmp_path / 'file'}")
    trio.close()


def test_ctrl_c_is_left_to_a_main_thread_that_moves(trio):
    trio.stamps[0].begin(1)
    trio.dogs[0].tick(interrupted=True)
    trio.pass_time(3)
    trio.stamps[0].mark(Stage.VERIFY)
    trio.pass_time(6)
    assert trio.codes[0] == []
    trio.stamps[0].mark(Stage.IDLE)
    trio.dogs[0].tick(interrupted=True)
    trio.pass_time(6)
    assert trio.failures() == ["", "", ""]


def test_ctrl_c_is_left_to_a_main_thread_that_acknowledges_it(trio):
    trio.stamps[0].begin(1)
    trio.dogs[0].tick(interrupted=True)
    trio.dogs[0].acknowledge()
    trio.pass_time(6)
    assert trio.failures() == ["", "", ""]


def test_ctrl_c_ends_the_group_of_a_main_thread_that_is_stuck(trio):
    trio.stamps[0].begin(1)
    trio.stamps[0].mark(Stage.VERIFY)
    trio.dogs[0].tick(interrupted=True)
    trio.pass_time(5)
    assert trio.codes[0] == [130]
    assert "rank 0 (pid 100 on host host0) was interrupted" in trio.dogs[1].failure
    trio.pass_time(2)
    assert trio.codes == [[130], [1], [1]]


def test_a_group_that_is_interrupted_is_not_said_to_be_stuck(trio):
    for stamps in trio.stamps:
        stamps.begin(1)
    trio.pass_time(LIMITS.limit_s - 1)
    trio.dogs[0].tick(interrupted=True)
    trio.pass_time(LIMITS.interrupt_s + 1)
    assert trio.codes[0] == [130]
    assert all("rank 0 (pid 100 on host host0) was interrupted" in sentence for sentence in trio.failures())


def test_ctrl_c_pressed_again_buys_a_stuck_main_thread_no_time(trio):
    trio.stamps[0].begin(1)
    for _ in range(3):
        trio.dogs[0].tick(interrupted=True)
        trio.pass_time(2)
    assert trio.codes[0] == [130]


def test_a_rank_that_does_not_start_is_named(trio):
    trio.dogs[0]._roll.entries[1].beat = None
    with pytest.raises(GroupError, match=re.escape("heard no heartbeat of rank 1 (pid 101 on host host1)")):
        trio.dogs[0].wait_for_all(0.01)


def test_an_exception_with_another_cause_names_the_cause(running):
    running.stamps[2].begin(4)
    running.stamps[2].mark(Stage.VERIFY)
    cause = running.dogs[2].announce_failure("out of memory")
    error = running.dogs[0].blame(ConnectionError("connection closed by peer"))
    assert isinstance(error, GroupError)
    assert str(error).partition("; last")[0] == str(cause).partition("; last")[0]
    assert running.codes[0] == []


def test_an_exception_without_another_cause_is_the_ranks_own(running):
    running.stamps[1].begin(8)
    running.stamps[1].mark(Stage.VERIFY)
    error = running.dogs[1].blame(ValueError("odd shape"))
    assert "rank 1 (pid 101 on host host1) failed at cycle 8, stage verify: ValueError: odd shape" in str(error)
    ends = time.monotonic() + 5
    while not all(running.failures()) and time.monotonic() < ends:
        time.sleep(0.01)
    assert all("odd shape" in sentence for sentence in running.failures())


def test_an_exception_is_blamed_on_the_rank_that_has_fallen_silent(running):
    running.dogs[2]._stopping = True  # its process is gone, on a host where nobody sees it
    error = running.dogs[1].blame(ConnectionError("connection closed by peer"))
    assert "rank 2 (pid 102 on host host2) stopped answering" in str(error)


def test_a_signal_reaches_the_watchdog_of_rank_0(running):
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        running.stamps[0].begin(1)
        os.kill(os.getpid(), signal.SIGINT)
        ends = time.monotonic() + 5
        while running.dogs[0]._interrupted_at is None:
            assert time.monotonic() < ends
            time.sleep(0.01)
        running.dogs[0].acknowledge()
    finally:
        signal.signal(signal.SIGINT, before)


def test_stop_gives_the_signals_back(tmp_path):
    trio = Trio(tmp_path, limits=FAST, clock=Clock())
    trio.dogs[0].start()
    trio.close()
    assert signal.set_wakeup_fd(-1) == -1
