"""Answer a few made-up requests before anyone waits: kernels load, cycles are captured, and R is known.

Each batch size that a cycle is captured for is run plainly and with the full shape, greedily and drawn, and prompts of
each size that kernels are cut for; on a CPU, where nothing is captured or compiled, one greedy request alone.
"""

from slipstream.cache.table import CacheStatistics
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import PLAIN
from slipstream.engine.engine import Ending, Engine
from slipstream.engine.gauge import AcceptanceGauge
from slipstream.flow.batch import capture_sizes
from slipstream.flow.output import Statistics
from slipstream.flow.request import Request
from slipstream.serve.llm import LLM
from slipstream.serve.messages import Loading
from slipstream.serve.pending import NoText
from slipstream.serve.wire import EngineWire

NUM_CYCLES = 6
PROMPTS = (20, 40, 80)  # tokens: of a tile of 32 and of 64 rows, and of a wide one; cycles of few rows come anyway
FIRST_ID = -1  # made-up requests count down, so that no user's has the same


def warm_up(llm: LLM, wire: EngineWire) -> None:
    """Run every size, then forget what was counted, but for what cycles cost."""
    engine = llm.engine
    config, on_cuda = engine.config, llm.device.type == "cuda"
    sizes, temperatures = [1], (0.0, 1.0) if on_cuda else (0.0,)
    if on_cuda and config.graph_sizes != ():
        captured = capture_sizes(config.graph_sizes, config.max_batch)
        sizes = sorted({*(min(size, config.max_batch) for size in captured), config.max_batch})
    prompts = [each for each in PROMPTS if on_cuda and each < config.max_len]
    for index, num_prompt in enumerate(prompts):
        wire.send(Loading(stage=f"warming up: a prompt of {num_prompt} tokens ({index + 1} of {len(prompts)})"))
        run(engine, 1, PLAIN.steps, temperatures[0], prompt=(2 + index,) * num_prompt)  # none begins as another does
    for done, size in enumerate(sizes):
        wire.send(Loading(stage=f"warming up: batch {size} ({done + 1} of {len(sizes)})"))
        for steps in dict.fromkeys((PLAIN.steps, engine.speculation.steps)):
            for temperature in temperatures:
                run(engine, size, steps, temperature)
    forget(engine)


def run(engine: Engine, size: int, steps: int, temperature: float, *, prompt: tuple[int, ...] = ()) -> None:
    """Answer so many requests together for a few cycles; prompts of one token each, if none is given."""
    most = engine.config.max_len - max(len(prompt), 1)
    params = SamplingParams(max_tokens=min(NUM_CYCLES * (steps + 1) + 1, most), temperature=temperature)
    for place in range(size):
        request = Request(id=FIRST_ID - place, prompt=prompt or (place % 2,), params=params, seed=0, steps=steps)
        engine.add(request, Ending(stop_ids=(), matcher=NoText()))
    while engine.busy:
        engine.step()


def forget(engine: Engine) -> None:
    """Nothing of this was asked for."""
    engine.gauge, engine.totals = AcceptanceGauge(steps=engine.speculation.steps), Statistics()
    engine.pages.statistics = CacheStatistics()
    engine.num_preemptions = engine.costs.batches = 0
    engine.costs.prefill_s = engine.costs.cycle_s = 0.0
