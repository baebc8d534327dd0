"""The last decisions are written whole, or not at all and without raising."""

import json

from slipstream.parallel.report import write_ring
from slipstream.parallel.ring import DecisionRing
from slipstream.parallel.stamps import Stage


def test_only_the_last_decisions_are_kept():
    ring = DecisionRing(capacity=3)
    for cycle in range(10):
        ring.append(cycle, Stage.ACCEPT, accepted=(cycle,))
    assert len(ring) == 3


def test_a_header_and_one_line_a_decision_are_written(tmp_path):
    ring = DecisionRing()
    ring.append(4, Stage.PROPOSE, drafted=(5, 6), shape=[2, 1])
    ring.append(4, Stage.ACCEPT, accepted=1)
    file = ring.write(tmp_path / "new" / "folder", rank=2, reason="rank 1 has ended")
    assert file == tmp_path / "new" / "folder" / "rank2.jsonl"
    header, *decisions = map(json.loads, file.read_text().splitlines())
    assert (header["rank"], header["reason"], header["decisions"]) == (2, "rank 1 has ended", 2)
    assert "T" in header["time"]
    assert decisions == [
        {"cycle": 4, "stage": "propose", "drafted": [5, 6], "shape": [2, 1]},
        {"cycle": 4, "stage": "accept", "accepted": 1},
    ]


def test_a_file_may_be_named(tmp_path):
    assert DecisionRing().write(tmp_path / "mine.jsonl", rank=0, reason="") == tmp_path / "mine.jsonl"


def test_an_unwritable_place_is_no_second_failure(tmp_path):
    blocked = tmp_path / "a file"
    blocked.write_text("")
    assert DecisionRing().write(blocked / "folder", rank=0, reason="") is None


def test_a_full_disk_is_no_second_failure():
    ring = DecisionRing()
    ring.append(1, Stage.ACCEPT)

    class FullDisk:
        suffix = ".jsonl"
        parent = property(lambda self: self)

        def mkdir(self, **_):
            pass

        def write_text(self, *_, **__):
            raise OSError(28, "No space left on device")

    assert ring.write(FullDisk(), rank=0, reason="") is None


def test_a_folder_that_hangs_is_not_waited_for(tmp_path):
    class Hanging(DecisionRing):
        def write(self, path, *, rank, reason):
            import threading

            threading.Event().wait(2)

    assert write_ring(Hanging(), tmp_path, rank=0, reason="", within_s=0.05) is None
