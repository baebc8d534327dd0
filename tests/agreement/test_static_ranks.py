"""Cycles in static shapes, under every placement: the same tokens, and the same collectives, as the eager cycle."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import Tensor

from slipstream.config.placement import Placement, placements
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import PLAIN, speculation
from slipstream.engine.engine import Engine
from slipstream.runner.graphs import GraphedCycle
from slipstream.runner.segment import Segment
from tests.loopback_ranks import LoopbackRanks, add_noise
from tests.tensor_parallel import Pair, write_pair
from tests.tiny_engine import run_all, some_prompts
from tests.unit.runner.test_capturable import Watch

GREEDY = SamplingParams(max_tokens=40)
PROMPTS = some_prompts(3, longest=30)
PLACEMENTS = placements(2)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackRanks]:
    pair: Pair = write_pair(Path(tmp_path_factory.mktemp("pair")))
    found = LoopbackRanks(pair, 2)
    yield found
    found.close()


def static_engine(ranks: LoopbackRanks, steps: int) -> Engine:
    engine = ranks.engine(speculation(steps))
    for rank in ranks.ranks:
        rank.worker.graphed = GraphedCycle(rank.worker.cycle, max_batch=4, steps=steps, capture=False)
    return engine


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_tokens_equal_plain_decoding(ranks: LoopbackRanks, placement: Placement) -> None:
    ranks.place(placement)
    expected = [each.tokens for each in run_all(ranks.engine(PLAIN), PROMPTS, GREEDY)]
    for steps in (1, 3):
        assert [each.tokens for each in run_all(static_engine(ranks, steps), PROMPTS, GREEDY)] == expected


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_segments_hold_device_work_only(
    ranks: LoopbackRanks, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Segment, body: Callable[[], None], *, moves: Tensor | None = None) -> None:
        with Watch():
            body()

    monkeypatch.setattr(Segment, "run", run)
    ranks.place(placement)
    run_all(static_engine(ranks, 3), PROMPTS, GREEDY)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_ranks_with_noisy_scores_go_on_together(ranks: LoopbackRanks, placement: Placement) -> None:
    ranks.place(placement)
    engine = static_engine(ranks, 3)
    for rank in ranks.ranks:
        add_noise(rank, target=0.0, draft=0.5)
    expected = [each.tokens for each in run_all(engine, PROMPTS, GREEDY)]
    assert expected == [each.tokens for each in run_all(ranks.engine(PLAIN), PROMPTS, GREEDY)]


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_collectives_are_those_of_the_eager_cycle(
    ranks: LoopbackRanks, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.place(placement)
    counts = []
    for make in (lambda: ranks.engine(speculation(3)), lambda: static_engine(ranks, 3)):
        engine, names = make(), Counter[str]()
        from slipstream.parallel.loopback import LoopbackGroup

        for op in ("all_reduce", "all_gather", "broadcast"):
            original = getattr(LoopbackGroup, op)

            def noted(self, x, name, original=original, op=op, names=names):
                names[f"{op} {name}"] += self.rank == 0
                return original(self, x, name)

            monkeypatch.setattr(LoopbackGroup, op, noted)
        run_all(engine, PROMPTS[:1], SamplingParams(max_tokens=2))
        monkeypatch.undo()
        counts.append(names)
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) > 0
