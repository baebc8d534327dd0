"""Fresh processes end as done, failed or hung, and none is left behind."""

import os
import time

from slipstream.doctor.latency import CPU_SETTINGS, Health, Latency, Setting, probe
from slipstream.doctor.ranks import Ending, run_ranks

SAY = "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ.get('NCCL_PROTO'), os.getpid())"
FAIL = "import os, sys, time; sys.exit('rank 1 is out of luck') if os.environ['RANK'] == '1' else time.sleep(60)"
HANG = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


def test_every_rank_knows_its_place_and_rank_zero_is_heard():
    outcome = run_ranks(("-c", SAY), size=2, timeout_s=30, environment={"NCCL_PROTO": "LL"})
    assert outcome.ending is Ending.DONE
    assert outcome.output.split()[:3] == ["0", "2", "LL"]


def test_a_variable_can_be_taken_away(monkeypatch):
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    assert run_ranks(("-c", SAY), size=1, timeout_s=30, environment={"NCCL_PROTO": None}).output.split()[2] == "None"


def test_a_rank_that_fails_ends_the_others_and_has_the_last_word():
    began = time.monotonic()
    outcome = run_ranks(("-c", FAIL), size=2, timeout_s=30)
    assert time.monotonic() - began < 20
    assert (outcome.ending, outcome.error) == (Ending.FAILED, "rank 1 is out of luck")


def test_a_run_without_an_end_is_hung_and_killed():
    outcome = run_ranks(("-c", HANG), size=2, timeout_s=1)
    assert outcome.ending is Ending.HUNG
    assert not os.path.exists(f"/proc/{int(outcome.output)}")


def test_a_setting_is_measured_at_every_size_over_two_processes():
    found = probe(CPU_SETTINGS[1], device="cpu", tp=2, sizes=(64, 4096), timeout_s=120)
    assert (found.health, len(found.us)) == (Health.OK, 2)
    assert all(us > 0 for us in found.us)


def test_a_way_that_there_is_not_failed():
    found = probe(Setting(name="none", path="three-shot"), device="cpu", tp=1, sizes=(64,), timeout_s=120)
    assert isinstance(found, Latency)
    assert found.health is not Health.OK
    assert found.reason
