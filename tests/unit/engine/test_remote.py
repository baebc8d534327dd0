"""The host loop and its rank 0 in two processes: results, refusals and the end travel over the socket."""

import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from typing import Any

import pytest
import torch

from slipstream.config.speculation import speculation
from slipstream.engine import ray as ray_ranks
from slipstream.engine.remote import Line, RemoteExecutor, serve_driver
from slipstream.flow.orders import Release, SetDelay, TellShare
from slipstream.flow.relay import Kind
from slipstream.parallel.roll import Limits
from slipstream.parallel.watchdog import GroupError

CPU = torch.device("cpu")


class FakeRanks:
    """Two ranks' answers, without ranks."""

    has_draft = True

    def __init__(self) -> None:
        self.orders: list[object] = []
        self.closed = threading.Event()

    def check(self, shape: Any) -> None:
        if shape.topk > 1:
            raise ValueError("topk 2 is more than 1; lower it")

    def order_all(self, order: object) -> list[Any]:
        self.orders.append(order)
        match order:
            case SetDelay(microseconds=1.0):
                raise ValueError("no delay")
            case SetDelay(microseconds=2.0):
                raise GroupError("rank 1 has ended")
            case SetDelay(microseconds=3.0):
                raise KeyError("a bug")
        return ["zero", "one"] if isinstance(order, TellShare) else ["zero"]

    def close(self) -> None:
        self.closed.set()


class Both:
    """Both ends, rank 0's on a thread."""

    def __init__(self, open_ranks: Callable[[Line], Any]) -> None:
        near, far = Pipe()
        self.line, self.ends, self.loaded, self.words = Line(far), [], [], None
        self.thread = threading.Thread(target=serve_driver, args=(self.line, open_ranks))
        self.executor = RemoteExecutor(
            near,
            "rank 0 (pid 1 on host a)",
            lost=lambda: self.words,
            end=lambda *, in_peace: self.ends.append(in_peace),
            on_tensor=self.loaded.append,
        )
        self.far = far
        self.thread.start()

    def shut(self) -> None:
        self.executor.close()
        self.thread.join(10)
        self.far.close()


@pytest.fixture
def ranks() -> FakeRanks:
    return FakeRanks()


@pytest.fixture
def both(ranks: FakeRanks) -> Iterator[Both]:
    both = Both(lambda line: ranks)
    both.executor.wait_until_up()
    yield both
    both.shut()


def test_orders_go_out_and_results_come_back(both: Both, ranks: FakeRanks):
    assert both.executor.has_draft
    assert both.executor.shares() == ("zero", "one")
    both.executor.release(5)
    assert ranks.orders == [TellShare(), Release(request=5)]
    both.executor.close()
    assert ranks.closed.wait(10)
    assert both.ends == [True]


def test_a_refusal_is_a_value_error_and_the_ranks_live_on(both: Both):
    with pytest.raises(ValueError, match="no delay"):
        both.executor.order(SetDelay(microseconds=1.0))
    with pytest.raises(ValueError, match="topk 2"):
        both.executor.check(speculation(2, 2))
    both.executor.check(speculation(2))
    assert both.executor.order(TellShare()) == "zero"


def test_a_bug_of_one_rank_alone_names_itself(both: Both, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(RuntimeError, match="rank 0: KeyError: 'a bug'"):
        both.executor.order(SetDelay(microseconds=3.0))
    assert "Traceback" in capfd.readouterr().err
    assert both.executor.order(TellShare()) == "zero"


def test_the_end_of_the_group_takes_everything_down_once(both: Both):
    with pytest.raises(GroupError, match="rank 1 has ended"):
        both.executor.order(SetDelay(microseconds=2.0))
    with pytest.raises(GroupError, match="rank 1 has ended"):
        both.executor.order(TellShare())
    both.executor.release(5)
    both.executor.close()
    assert both.ends == [False]


def test_what_the_watchdog_says_unasked_is_heard_at_the_next_order(both: Both):
    both.line.say(Kind.ENDED, "rank 1 made no progress")
    with pytest.raises(GroupError, match="rank 1 made no progress"):
        both.executor.order(TellShare())


def test_a_rank_0_that_is_gone_is_named():
    both = Both(lambda line: line._connection.close() or FakeRanks())
    with pytest.raises(GroupError, match=r"^rank 0 \(pid 1 on host a\) has ended; the group ends"):
        both.executor.wait_until_up()
    both.shut()


def test_a_rank_that_ray_has_lost_is_named_when_rank_0_stays_silent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("slipstream.engine.remote.POLL_S", 0.01)
    monkeypatch.setattr("slipstream.engine.remote.PATIENCE_S", 0.01)
    may_end = threading.Event()
    both = Both(lambda line: may_end.wait(10) and FakeRanks())
    both.words = "rank 1 has ended"
    with pytest.raises(GroupError, match="rank 1 has ended"):
        both.executor.wait_until_up()
    may_end.set()
    both.shut()


def test_ranks_that_cannot_come_up_say_why():
    def refuse(line: Line) -> FakeRanks:
        raise ValueError("rank 1 did not connect")

    both = Both(refuse)
    with pytest.raises(ValueError, match="rank 1 did not connect"):
        both.executor.wait_until_up()
    both.shut()


def test_loaded_bytes_are_told_before_the_result():
    def load(line: Line) -> FakeRanks:
        line.say(Kind.LOADED, 7)
        line.say(Kind.LOADED, 8)
        return FakeRanks()

    both = Both(load)
    both.executor.wait_until_up()
    assert both.loaded == [7, 8]
    both.shut()


def berth(node: str, gpus: str = "") -> ray_ranks.Berth:
    return ray_ranks.Berth(node=node, address=f"10.0.0.{node}", host=f"host-{node}", pid=1, gpus=gpus)


def test_ranks_of_one_node_stand_together_and_see_all_its_gpus():
    found = [berth("2", "4"), berth("1", "0"), berth("2", "5"), berth("1", "1")]
    order = ray_ranks.by_node(found)
    assert order == [0, 2, 1, 3]
    seatings = ray_ranks.seats([found[place] for place in order], port=9)
    assert [each.gpus for each in seatings] == ["4,5", "4,5", "0,1", "0,1"]
    spots = [each.spot for each in seatings]
    assert [(spot.rank, spot.size, spot.local_rank, spot.local_size) for spot in spots] == [
        (0, 4, 0, 2),
        (1, 4, 1, 2),
        (2, 4, 0, 2),
        (3, 4, 1, 2),
    ]
    assert {(spot.address, spot.port) for spot in spots} == {("10.0.0.2", 9)}


def test_without_ray_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'slipstream\[ray\]'"):
        ray_ranks.open_ray_ranks(2, CPU, limits=Limits())


def test_one_gpu_by_its_number_is_not_ours_to_choose_under_ray():
    with pytest.raises(ValueError, match="use --device cuda"):
        ray_ranks.open_ray_ranks(2, torch.device("cuda", 1), limits=Limits())
