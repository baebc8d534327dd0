"""Two GPUs in one group: every placement gives one GPU's tokens in fp32, captured or not, and a long run holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.bench.placement import NUM_PROMPT
from slipstream.bench.shapes import full_shape
from slipstream.config.engine import EngineConfig
from slipstream.config.placement import Placement, placements
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import speculation
from slipstream.engine.engine import Engine
from slipstream.engine.executor import RankExecutor
from slipstream.engine.group import open_executor
from slipstream.engine.placement import time_cycles
from slipstream.flow.orders import LoadTarget, MakePools, PlaceDraft, SetDelay
from slipstream.runner.load import read_model_config
from slipstream.telemetry.clock import Clock
from tests.tensor_parallel import CONTEXT, Pair, write_pair
from tests.tiny_engine import run_all, some_prompts

pytestmark = [
    pytest.mark.multigpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.timeout(600),
]

GREEDY = SamplingParams(max_tokens=40)
PROMPTS = some_prompts(4, longest=30)
SHAPE = full_shape("tiny")
SOAK_CYCLES, SOAK_TURNS = 500, 4


@contextmanager
def opened(tp: int) -> Iterator[RankExecutor]:
    executor = open_executor(tp, torch.device("cuda"))
    try:
        yield executor
    finally:
        executor.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(Path(tmp_path_factory.mktemp("pair")))


def load(executor: RankExecutor, pair: Pair) -> None:
    config = read_model_config(pair.model)
    executor.order(LoadTarget(config=config, path=str(pair.model), dtype="float32", max_position=CONTEXT))


def answers(executor: RankExecutor, pair: Pair, where: Placement, steps: int, **settings: Any) -> list[tuple[int, ...]]:
    executor.order(PlaceDraft(path=str(pair.draft), placement=where, dtype="float32"))
    config = EngineConfig(speculation=speculation(steps), max_len=CONTEXT, max_batch=4, num_pages=90, **settings)
    executor.order(MakePools(config=config))
    return [each.tokens for each in run_all(Engine(config, executor, clock=Clock()), PROMPTS, GREEDY)]


@pytest.fixture(scope="module")
def alone(pair: Pair) -> list[tuple[int, ...]]:
    """One GPU's, uncaptured."""
    with opened(1) as executor:
        load(executor, pair)
        return answers(executor, pair, Placement(ranks=1), 3, graphs=False)


def test_every_placement_gives_the_tokens_of_one_gpu(pair: Pair, alone: list[tuple[int, ...]]) -> None:
    with opened(2) as executor:
        load(executor, pair)
        for where in placements(2):
            for graphs in (True, False):
                for steps in (0, 1, 3):
                    assert answers(executor, pair, where, steps, graphs=graphs) == alone, (where, steps, graphs)


def test_a_delay_lasts_as_long_in_captured_cycles_as_it_is_set(pair: Pair) -> None:
    """2 collectives a layer, the embedding and the best token: a plain step is longer by as many delays."""
    config = EngineConfig(speculation=speculation(0), max_len=CONTEXT)
    medians = []
    with opened(2) as executor:
        load(executor, pair)
        executor.order(PlaceDraft(path=None, placement=Placement(ranks=1), dtype="float32"))
        for us in (0.0, 1000.0, 0.0):
            executor.order(SetDelay(microseconds=us))
            times = time_cycles(executor, config, vocab_size=120, clock=Clock(), cycles=24)[8:]
            medians.append(sorted(times)[len(times) // 2] * 1e3)
        num_collectives = 2 * read_model_config(pair.model).num_layers + 2
    assert medians[1] - medians[0] == pytest.approx(num_collectives, rel=0.15)
    assert medians[2] < medians[0] + 2


@pytest.mark.parametrize("where", placements(2)[1:], ids=str)
def test_two_thousand_captured_cycles_end_without_a_divergence(where: Placement) -> None:
    """A draft cut over all ranks, or whole on each: the ranks decide alike all the way, and none waits in vain."""
    longest = NUM_PROMPT + (SOAK_CYCLES + 2) * 4
    config = EngineConfig(speculation=speculation(3), max_len=longest, synthetic_accept_length=2.4)
    with opened(2) as executor:
        order = LoadTarget(config=SHAPE.target, path=None, dtype="bfloat16", max_position=longest)
        executor.order(order)
        executor.order(PlaceDraft(path=None, placement=where, dtype="bfloat16", dummy=SHAPE.draft))
        for _ in range(SOAK_TURNS):
            times = time_cycles(
                executor,
                config,
                vocab_size=SHAPE.target.vocab_size,
                clock=Clock(),
                cycles=SOAK_CYCLES,
                batch=2,
                num_prompt=NUM_PROMPT,
            )
            assert len(times) == SOAK_CYCLES
        assert executor.worker.cycle.reruns == 0
