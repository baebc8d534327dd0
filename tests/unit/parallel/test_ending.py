"""Who is killed after a failure, when a process ends itself, and when it may not."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from slipstream.parallel import process
from slipstream.parallel.ending import ANSWER_S, Ending
from slipstream.parallel.heartbeat import Beat, Failure, Kind, Peer, State
from slipstream.parallel.process import start_ticks
from slipstream.parallel.roll import Entry, Limits
from slipstream.parallel.stamps import Stage

LIMITS = Limits(grace_s=2)
BEAT = Beat(rank=0, sequence=1, cycle=1, stage=Stage.VERIFY, active=True, still_s=0.0, state=State.ALIVE)


def ending(kind: Kind = Kind.GONE, *, origin: int = 9, rank: int = 1) -> Ending:
    return Ending(Failure(kind=kind, origin=origin, reporter=1, sentence=""), rank, LIMITS)


@pytest.fixture
def entry() -> Iterator[Entry]:
    """Rank 2, a process of this machine that does nothing."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    peer = Peer(rank=2, host_name="", address=("127.0.0.1", 1), pid=child.pid, started=start_ticks(child.pid))
    yield Entry(peer=peer, is_local=True, heard_at=0.0, beat=BEAT)
    child.kill()
    child.wait()


def as_rank_0(entry: Entry) -> Entry:
    entry.peer = replace(entry.peer, rank=0)
    return entry


def knowing(entry: Entry, state: State = State.FAILED) -> Entry:
    entry.beat = replace(BEAT, state=state)
    return entry


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Whether the entry's process would be killed at a time."""
    killed: list[int] = []
    monkeypatch.setattr(process, "kill", lambda pid, started: killed.append(pid))

    def ask(ending: Ending, entry: Entry, since_s: float) -> bool:
        killed.clear()
        ending.round_up([entry], since_s)
        return killed == [entry.peer.pid]

    return ask


def test_a_stopped_rank_is_killed_at_once_also_rank_0(entry, dies):
    assert dies(ending(Kind.SILENT, origin=0), as_rank_0(entry), 0.0)


def test_a_rank_that_does_not_answer_is_killed_after_a_second(entry, dies):
    assert not dies(ending(), entry, 0.9 * ANSWER_S)
    assert dies(ending(), entry, 1.1 * ANSWER_S)


def test_rank_0_gets_the_time_to_report_before_it_is_killed(entry, dies):
    assert not dies(ending(), as_rank_0(entry), 1.9)
    assert dies(ending(), entry, 2.0)


def test_rank_0_is_never_killed_once_it_knows(entry, dies):
    assert not dies(ending(), knowing(as_rank_0(entry)), 1000.0)


def test_a_rank_that_knows_gets_its_grace_and_is_killed_when_it_hangs(entry, dies):
    assert not dies(ending(), knowing(entry), 3.9)
    assert dies(ending(), entry, 4.1)


def test_a_rank_that_left_is_let_alone(entry, dies):
    assert not dies(ending(), knowing(entry, State.LEAVING), 1000.0)


def test_a_process_of_another_machine_is_not_touched(entry, dies):
    entry.is_local = False
    assert not dies(ending(Kind.SILENT, origin=2), entry, 1000.0)


def test_a_rank_is_accounted_for_when_it_knows_or_has_ended(entry):
    assert not ending().round_up([entry], 0.0)
    assert ending().round_up([knowing(entry)], 0.0)
    assert not ending().round_up([replace(entry, beat=BEAT)], 0.0)
    assert ending(Kind.GONE, origin=2).round_up([replace(entry, beat=BEAT)], 0.0)


def test_of_other_machines_only_rank_0_is_waited_for(entry):
    entry.is_local = False
    assert ending().round_up([entry], 0.0)
    assert not ending().round_up([as_rank_0(entry)], 0.0)


@pytest.mark.parametrize(
    ("rank", "since_s", "noticed_s", "overdue"),
    [
        (1, 1.9, None, False),
        (1, 2.1, None, True),
        (0, 2.9, None, False),  # its main thread notices when the others' sockets close
        (0, 3.1, None, True),
        (0, 99.0, 98.0, False),  # the user's process may go on
        (1, 99.0, 4.0, False),
        (1, 99.0, 6.0, True),  # it hangs in its exit
    ],
)
def test_a_process_ends_itself_when_its_main_thread_does_not(rank, since_s, noticed_s, overdue):
    assert ending(rank=rank).is_overdue(since_s, noticed_s=noticed_s, accounted=True) is overdue


def test_an_interrupted_rank_0_ends_as_soon_as_the_others_know():
    interrupted = ending(Kind.INTERRUPTED, origin=0, rank=0)
    assert interrupted.exit_code == 130
    assert interrupted.is_overdue(0.1, noticed_s=None, accounted=True)
    assert not interrupted.is_overdue(0.1, noticed_s=None, accounted=False)
    assert interrupted.is_overdue(2.1, noticed_s=None, accounted=False)
    assert ending(Kind.INTERRUPTED, origin=0, rank=1).exit_code == 1
