"""Print the processor time that the host spends on each cycle besides the device's work, in ms, as JSON.

    python -m tests.slow.host_cost STEPS TOPK NUM_PROMPT NUM_WAITING

A process of its own: under pytest some rooms check their types at every call.
"""

import gc
import json
import sys
import time

from slipstream.config.engine import EngineConfig
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.batch import Batch
from slipstream.flow.output import Run
from slipstream.flow.request import Request
from slipstream.telemetry.clock import Clock
from tests.fake_executor import FakeExecutor
from tests.tiny_engine import NoStops

RUNNING, CYCLES = 64, 300


class TimedExecutor(FakeExecutor):
    """Knows how long it took itself."""

    spent_s = 0.0

    def step(self, batch: Batch) -> tuple[Run, ...]:
        started = time.thread_time()
        runs = super().step(batch)
        self.spent_s += time.thread_time() - started
        return runs


def host_ms(shape: Speculation, *, num_prompt: int, num_waiting: int = 0) -> list[float]:
    """Of every cycle with 64 running requests."""
    config = EngineConfig(speculation=shape, max_len=num_prompt + 4000, max_batch=RUNNING, num_pages=RUNNING * 500)
    executor = TimedExecutor(config, careful=False)
    engine = Engine(config, executor, clock=Clock())
    params = SamplingParams(max_tokens=4000)
    for number in range(RUNNING + num_waiting):
        prompt = tuple((7 * number + place) % 60 for place in range(num_prompt))
        engine.add(Request(id=number, prompt=prompt, params=params, seed=0), Ending(stop_ids=(), matcher=NoStops()))
    while len(engine.running) < RUNNING or not all(state.decoding for state in engine.running.values()):
        engine.step()
    found: list[float] = []
    gc.collect()
    for _ in range(CYCLES):
        before, started = executor.spent_s, time.thread_time()
        engine.step()
        found.append(1e3 * (time.thread_time() - started - (executor.spent_s - before)))
    assert len(engine.running) == RUNNING
    return found


if __name__ == "__main__":
    steps, topk, num_prompt, num_waiting = (int(text) for text in sys.argv[1:])
    print(json.dumps(host_ms(speculation(steps, topk), num_prompt=num_prompt, num_waiting=num_waiting)))
