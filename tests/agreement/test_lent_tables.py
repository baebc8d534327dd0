"""What a draft borrows of its target (embedding, head) it gets under every placement, cut or whole."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.config.placement import placements
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import speculation
from slipstream.serve.llm import LLM
from tests.loopback_ranks import LoopbackRanks
from tests.tensor_parallel import Pair, write_pair
from tests.tiny_engine import run_all, some_prompts

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.8, seed=5)
PROMPTS = some_prompts(2, longest=30)
VOCABULARY = 121
Tensors = dict[str, torch.Tensor]


def without_head(tensors: Tensors) -> Tensors:
    return {name: each for name, each in tensors.items() if name != "lm_head.weight"}


def with_own_table(tensors: Tensors) -> Tensors:
    generator = torch.Generator().manual_seed(6)
    return {**tensors, "embed_tokens.weight": torch.randn(VOCABULARY, 32, generator=generator) * 0.15}


def with_own_table_but_no_head(tensors: Tensors) -> Tensors:
    return without_head(with_own_table(tensors))


def pair_of(folder: Path, change: Callable[[Tensors], Tensors], *, tie: bool) -> Pair:
    pair = write_pair(folder, vocab_size=VOCABULARY, draft_vocab_size=VOCABULARY, tie_word_embeddings=tie)
    file = pair.draft / "model.safetensors"
    save_file(change(load_file(file)), file)
    return pair


@pytest.mark.parametrize("tie", [False, True], ids=["own head", "tied target"])
@pytest.mark.parametrize("change", [without_head, with_own_table, with_own_table_but_no_head])
def test_a_draft_proposes_the_same_wherever_it_is(
    tmp_path: Path, change: Callable[[Tensors], Tensors], tie: bool
) -> None:
    pair = pair_of(tmp_path, change, tie=tie)
    alone = LLM(str(pair.model), draft=str(pair.draft), steps=3)
    wanted = [(each.tokens, each.runs) for each in run_all(alone.engine, PROMPTS, PARAMS)]
    assert any(run > 1 for _, runs in wanted for run in runs)
    ranks = LoopbackRanks(pair, 2)
    for placement in placements(2):
        ranks.place(placement)
        found = run_all(ranks.engine(speculation(3)), PROMPTS, PARAMS)
        assert [(each.tokens, each.runs) for each in found] == wanted, placement
    ranks.close()
