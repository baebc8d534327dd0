"""What a stream has reached is written by the stream, eagerly and from a graph, and read without CUDA."""

import time

import pytest
import torch

from slipstream.parallel.device_stamps import DeviceStamps
from slipstream.parallel.stamps import Stage

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

LONG_CYCLES = 2_000_000_000  # about a second


def test_the_stage_is_the_devices_and_the_marks_are_the_hosts() -> None:
    stamps = DeviceStamps(torch.device("cuda"))
    stamps.begin(7)
    stamps.mark(Stage.PROPOSE)
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG_CYCLES)
    stamps.mark(Stage.VERIFY)
    stamps.mark(Stage.IDLE)
    assert stamps.read() == (7, Stage.PROPOSE)
    assert stamps.active  # the host is idle, the device is not
    before = stamps.progress()
    torch.cuda.synchronize()
    assert stamps.read() == (7, Stage.IDLE)
    assert stamps.progress() != before
    assert not stamps.active


def test_a_captured_mark_is_written_at_every_replay() -> None:
    stamps = DeviceStamps(torch.device("cuda"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stamps.mark(Stage.PROPOSE)
        torch.cuda._sleep(LONG_CYCLES)
        stamps.mark(Stage.ACCEPT)
    stamps.mark(Stage.IDLE)
    for cycle in (1, 2):
        stamps.begin(cycle)
        graph.replay()
        ends = time.monotonic() + 5
        while stamps.read() != (cycle, Stage.PROPOSE):
            assert time.monotonic() < ends
        torch.cuda.synchronize()
        assert stamps.read() == (cycle, Stage.ACCEPT)
        assert stamps.active
    stamps.mark(Stage.IDLE)
    torch.cuda.synchronize()
    assert stamps.read() == (2, Stage.IDLE)
    assert not stamps.active


def test_a_cycles_stamps_cost_little() -> None:
    stamps = DeviceStamps(torch.device("cuda"))
    stamps.begin(0)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for cycle in range(1000):
        stamps.begin(cycle)
        for stage in (Stage.EXTEND, Stage.PROPOSE, Stage.VERIFY, Stage.ACCEPT):
            stamps.mark(stage)
    torch.cuda.synchronize()
    assert (time.perf_counter() - started) / 1000 < 500e-6  # seconds a cycle
    print(f"{(time.perf_counter() - started) * 1e3:.0f} us a cycle")
