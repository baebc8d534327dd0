"""What the host spends on a cycle besides the device's work; run it on a machine that does nothing else."""

import gc
import time
from statistics import median

import pytest

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

pytestmark = pytest.mark.slow

RUNNING, CYCLES = 64, 300
MOST_MS = 0.5
SHAPES = [speculation(0), speculation(4), speculation(4, 4, 12)]


class TimedExecutor(FakeExecutor):
    """Knows how long it took itself."""

    spent_s = 0.0

    def step(self, batch: Batch) -> tuple[Run, ...]:
        started = time.perf_counter()
        runs = super().step(batch)
        self.spent_s += time.perf_counter() - started
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
        before, started = executor.spent_s, time.perf_counter()
        engine.step()
        found.append(1e3 * (time.perf_counter() - started - (executor.spent_s - before)))
    assert len(engine.running) == RUNNING
    return found


@pytest.mark.parametrize("num_waiting", [0, 200])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_cycle_of_64_requests_costs_the_host_less_than_half_a_millisecond(
    shape: Speculation, num_waiting: int
) -> None:
    found = host_ms(shape, num_prompt=100, num_waiting=num_waiting)
    print(
        f"host ms a cycle: median {median(found):.3f}, least {min(found):.3f}, {num_waiting} wait, {shape}", flush=True
    )
    assert median(found) < MOST_MS


def test_what_a_cycle_costs_does_not_grow_with_the_text() -> None:
    short, long = (median(host_ms(speculation(4), num_prompt=length)) for length in (16, 3000))
    print(f"host ms a cycle: {short:.3f} after 16 tokens, {long:.3f} after 3000", flush=True)
    assert long < 1.5 * short
