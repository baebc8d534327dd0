"""A next turn's hit on pages that decoding wrote, over two ranks and every placement of the draft."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.config.placement import Placement, placements
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from tests.loopback_ranks import LoopbackRanks
from tests.tensor_parallel import write_pair
from tests.tiny_engine import run_all, some_prompts

PARAMS = SamplingParams(max_tokens=40)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackRanks]:
    found = LoopbackRanks(write_pair(Path(tmp_path_factory.mktemp("pair"))), 2)
    yield found
    found.close()


@pytest.mark.parametrize("shape", [speculation(0), speculation(3)], ids=["plain", "chain"])
@pytest.mark.parametrize("placement", placements(2), ids=str)
def test_all_ranks_complete_what_is_published_and_a_second_turn_equals_a_cold_one(
    ranks: LoopbackRanks, placement: Placement, shape: Speculation
) -> None:
    ranks.place(placement)
    prompts = some_prompts(3, longest=30)
    warm = ranks.engine(shape)
    firsts = run_all(warm, prompts, PARAMS)
    longer = [[*prompt, *first.tokens, 4, 2] for prompt, first in zip(prompts, firsts, strict=True)]
    found = run_all(warm, longer, PARAMS)
    expected = run_all(ranks.engine(shape, prefix_cache=False), longer, PARAMS)
    for prompt, each, cold in zip(prompts, found, expected, strict=True):
        assert each.num_cached == (len(prompt) + 39) // 16 * 16 > cold.num_cached == 0
        assert (each.tokens, each.runs) == (cold.tokens, cold.runs)
