"""Who is judged to have failed, and when."""

import os
import re
from dataclasses import replace

import pytest

from slipstream.parallel.heartbeat import Beat, Failure, Kind, Peer, State
from slipstream.parallel.process import start_ticks
from slipstream.parallel.roll import Limits, Roll, truer
from slipstream.parallel.stamps import Stage

LIMITS = Limits(limit_s=30, load_limit_s=100)
GONE_PID = 2**22 + 1  # above the largest pid of Linux


def peer(rank: int, host_name: str = "far", pid: int = 100, started: int | None = 5) -> Peer:
    return Peer(rank=rank, host_name=host_name, address=("127.0.0.1", 1), pid=pid, started=started)


def beat(rank: int, *, sequence: int = 1, cycle: int = 17, stage: Stage = Stage.IDLE, **more: object) -> Beat:
    fields = {"active": stage is not Stage.IDLE, "still_s": 0.0, "state": State.ALIVE, **more}
    return Beat(rank=rank, sequence=sequence, cycle=cycle, stage=stage, **fields)


@pytest.fixture
def roll() -> Roll:
    roll = Roll(peer(0, "near"), [peer(1), peer(2)], LIMITS, now=0.0)
    for rank in (1, 2):
        roll.hear(beat(rank, stage=Stage.VERIFY), 0.0)
    return roll


OWN = beat(0)


def test_all_is_well_while_all_are_heard(roll):
    assert roll.judge(OWN, 29.9) is None


def test_a_rank_that_was_never_heard_is_missing_but_not_dead():
    roll = Roll(peer(0), [peer(1), peer(2)], LIMITS, now=0.0)
    roll.hear(beat(2), 0.0)
    assert [each.rank for each in roll.unheard()] == [1]
    assert roll.judge(OWN, 29.0) is None


def test_a_silent_rank_has_stopped_answering(roll):
    roll.hear(beat(2, sequence=2), 10.0)
    failure = roll.judge(OWN, 30.1)
    assert (failure.kind, failure.origin, failure.reporter) == (Kind.SILENT, 1, 0)
    assert failure.sentence == (
        "rank 1 (pid 100 on host far) stopped answering for 30.1 s at cycle 17, stage verify"
        " (rank 0 is at cycle 17, stage idle); the group ends. Restart it"
    )


def test_the_rank_that_is_silent_for_the_longest_is_named(roll):
    roll.hear(beat(1, sequence=2), 10.0)
    assert roll.judge(OWN, 50.0).origin == 2


def test_a_beat_that_was_overtaken_on_its_way_changes_nothing(roll):
    roll.hear(beat(1, sequence=5, cycle=18), 1.0)
    roll.hear(beat(1, sequence=4, cycle=16), 2.0)
    assert (roll.entries[1].beat.cycle, roll.entries[1].heard_at) == (18, 1.0)


def test_a_rank_that_left_is_not_missed(roll):
    for rank in (1, 2):
        roll.hear(beat(rank, sequence=2, state=State.LEAVING), 0.0)
    assert roll.judge(OWN, 1000.0) is None


def test_ranks_that_rank_0_left_behind_end():
    roll = Roll(peer(1), [peer(0)], LIMITS, now=0.0)
    roll.hear(beat(0, state=State.LEAVING), 0.0)
    assert roll.judge(beat(1), 29.0) is None
    assert "has left without ending the group" in roll.judge(beat(1), 31.0).sentence


def test_a_process_of_this_host_that_ended_is_known_at_once():
    here = os.getpid()
    near = peer(1, "near", here, start_ticks(here))
    roll = Roll(peer(0, "near"), [near], LIMITS, now=0.0)
    roll.hear(beat(1, stage=Stage.PROPOSE), 0.0)
    assert roll.judge(OWN, 0.1) is None
    roll.entries[1].peer = replace(near, started=1)
    failure = roll.judge(OWN, 0.1)
    assert (failure.kind, failure.origin) == (Kind.GONE, 1)
    assert re.search(r"^rank 1 \(pid \d+ on host near\) has ended at cycle 17, stage propose", failure.sentence)


def test_a_pid_of_another_container_with_this_host_name_is_not_judged():
    roll = Roll(peer(0, "near"), [peer(1, "near", GONE_PID), peer(2, "near", os.getpid(), 1)], LIMITS, now=0.0)
    assert roll.local() == []
    assert roll.judge(OWN, 1.0) is None


def test_a_rank_without_progress_is_stuck_but_an_idle_one_is_not(roll):
    assert roll.judge(replace(OWN, still_s=1000.0), 1.0) is None
    failure = roll.judge(beat(0, cycle=16, stage=Stage.VERIFY, still_s=31.0), 1.0)
    assert (failure.kind, failure.origin) == (Kind.STUCK, 0)
    assert "rank 0 (pid 100 on host near) made no progress for 30 s at cycle 16, stage verify" in failure.sentence


def test_loading_may_take_longer(roll):
    assert roll.judge(beat(0, stage=Stage.LOAD, still_s=99.0), 1.0) is None
    assert roll.judge(beat(0, stage=Stage.LOAD, still_s=101.0), 1.0).kind is Kind.STUCK


@pytest.mark.parametrize(
    ("others", "origin"),
    [
        ({1: {"cycle": 16, "stage": Stage.ACCEPT}}, 1),  # an earlier cycle
        ({1: {"stage": Stage.PROPOSE}, 2: {"stage": Stage.EXTEND}}, 2),  # an earlier stage
        ({1: {"still_s": 40.0}, 2: {"still_s": 35.0}}, 1),  # stood still first
        ({1: {"stage": Stage.IDLE}, 2: {"stage": Stage.IDLE}}, 0),  # the others are done with the cycle
    ],
)
def test_of_stuck_ranks_the_one_that_fell_behind_is_named(roll, others, origin):
    for rank, fields in others.items():
        roll.hear(beat(rank, sequence=2, **{"stage": Stage.VERIFY, "still_s": 20.0, **fields}), 1.0)
    assert roll.judge(beat(0, stage=Stage.VERIFY, still_s=31.0), 1.0).origin == origin


def test_a_rank_that_was_stopped_too_long_ends_unless_its_peers_still_answer(roll):
    roll.was_away(45.0, 1.0)
    assert roll.judge(OWN, 2.9) is None
    failure = roll.judge(OWN, 3.1)
    assert (failure.kind, failure.origin) == (Kind.SILENT, 0)
    assert "was stopped for 45 s at cycle 17" in failure.sentence


def test_ranks_that_were_stopped_together_go_on_together(roll):
    roll.was_away(45.0, 1.0)
    for tenths in range(10, 70):
        for rank in (1, 2):
            roll.hear(beat(rank, sequence=tenths), tenths / 10)
        assert roll.judge(OWN, tenths / 10) is None
    assert roll.judge(OWN, 20.0) is None  # the usual patience again


def test_an_exception_is_one_short_line(roll):
    sentence = roll.raised(beat(0, stage=Stage.VERIFY), "ValueError: a\n  b" + "c" * 1000).sentence
    assert sentence.startswith("rank 0 (pid 100 on host near) failed at cycle 17, stage verify: ValueError: a bcc")
    assert len(sentence) < 450
    assert sentence.endswith("; the group ends. Restart it")


def made(kind: Kind, origin: int, reporter: int) -> Failure:
    return Failure(kind=kind, origin=origin, reporter=reporter, sentence="")


def test_all_ranks_settle_on_the_same_of_two_failures():
    gone, raised = made(Kind.GONE, 1, 0), made(Kind.RAISED, 2, 2)
    assert truer(gone, raised) == truer(raised, gone) == gone  # the exception is what the end of rank 1 led to
    same = made(Kind.RAISED, 1, 1)
    assert truer(gone, same) == truer(same, gone) == same  # the exception says why rank 1 has ended
    other = made(Kind.GONE, 1, 2)
    assert truer(gone, other) == truer(other, gone) == gone
