"""Between two captured cycles of the 8B shape the device has nothing to do for less than 3% of the time."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from slipstream.bench.shapes import full_shape
from slipstream.config.engine import EngineConfig
from slipstream.config.placement import LEADER_ALONE
from slipstream.config.speculation import speculation
from slipstream.engine.group import open_executor
from slipstream.engine.placement import time_cycles
from slipstream.flow.orders import LoadTarget, PlaceDraft
from slipstream.telemetry.clock import Clock

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SHAPE, WARM_UP, CYCLES = "llama-3.1-8b", 8, 16
FEWEST = 20  # kernels of a graph; copies between graphs are alone
MOST_IDLE = 0.03


def graphs_of(trace: Path) -> list[tuple[float, float]]:
    """When each graph's first kernel began and its last one ended, microseconds; kernels of a launch are told apart."""
    events = json.loads(trace.read_text())["traceEvents"]
    launches: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and event.get("cat") == "kernel":
            launches[event["args"]["correlation"]].append((event["ts"], event["ts"] + event["dur"]))
    whole = [spans for spans in launches.values() if len(spans) > FEWEST]
    return sorted((min(begin for begin, _ in spans), max(end for _, end in spans)) for spans in whole)


@pytest.mark.parametrize("steps", [0, 3])
def test_the_device_hardly_idles_between_cycles(steps: int, tmp_path: Path) -> None:
    full, executor = full_shape(SHAPE), open_executor(1, torch.device("cuda"))
    executor.order(LoadTarget(config=full.target, path=None, dtype="bfloat16", max_position=1024))
    draft = full.draft if steps else None
    executor.order(PlaceDraft(path=None, placement=LEADER_ALONE, dtype="bfloat16", dummy=draft))
    config = EngineConfig(speculation=speculation(steps), max_len=2, synthetic_accept_length=2.2 if steps else None)
    watch, done = profile(activities=[ProfilerActivity.CUDA], acc_events=True), []

    def on_cycle() -> None:
        done.append(None)
        if len(done) == WARM_UP:
            torch.cuda.synchronize()
            watch.start()

    settings = {"vocab_size": full.target.vocab_size, "clock": Clock(), "num_prompt": 128}
    time_cycles(executor, config, cycles=WARM_UP + CYCLES, on_cycle=on_cycle, **settings)
    torch.cuda.synchronize()
    watch.stop()
    executor.close()
    watch.export_chrome_trace(str(tmp_path / "trace.json"))
    graphs = graphs_of(tmp_path / "trace.json")[2:]  # the first follow a pause
    assert len(graphs) >= CYCLES - 2
    idle = sum(max(0.0, after[0] - before[1]) for before, after in pairwise(graphs))
    total = graphs[-1][1] - graphs[0][0]
    print(f"K {steps}: idle {idle / total:.2%} of {total / 1e3:.1f} ms, {len(graphs)} graphs")
    assert idle < MOST_IDLE * total
