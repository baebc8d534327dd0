"""What a recorder asks of the device, by stand-ins for events."""

from typing import Any

import pytest
import torch

from slipstream.bench.delays import NO_DELAYS, Brake
from slipstream.bench.recorder import Recorder
from slipstream.bench.spans import EXTEND, HOST, VERIFY
from slipstream.parallel.stamps import Stage


class Event:
    made = 0
    now = 0.0

    def __init__(self, **settings: Any) -> None:
        Event.made += 1
        self.at = 0.0

    def record(self) -> None:
        Event.now += 1.0
        self.at = Event.now

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: "Event") -> float:
        return other.at - self.at


def test_the_events_of_former_cycles_are_recorded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    recorder = Recorder(torch.device("cuda"), Brake(torch.device("cpu"), NO_DELAYS))
    counts = []
    for _ in range(3):
        recorder.begin()
        recorder.enter(Stage.EXTEND)
        recorder.collective_begins()
        recorder.collective_ends(role="target", op="all_reduce", name="mlp", num_bytes=4)
        recorder.enter(Stage.VERIFY)
        recorder.end()
        cycle = recorder.left()
        assert cycle is not None
        assert [span.label for span in cycle.spans[:3]] == [HOST, EXTEND, VERIFY]
        assert [call.ms for call in cycle.calls] == [1.0]
        counts.append(Event.made)
    assert counts[0] > 0
    assert counts == counts[:1] * 3
