"""A target and its draft cut over gloo ranks give the tokens of one rank, wherever the draft is, in every shape."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream import LLM, SamplingParams
from slipstream.config.placement import placements
from slipstream.serve.completion import Completion
from tests.tensor_parallel import NEAR_TIE, Pair, leads_at_differences, write_pair

UNEVEN = {"intermediate_size": 75, "vocab_size": 121, "draft_vocab_size": 83}  # 2 and 4 divide none of them
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"kind": "llama"},
    "qwen3 tied and uneven": {"kind": "qwen3", "tie_word_embeddings": True, **UNEVEN},
    "qwen2 with biases and uneven": {"kind": "qwen2", **UNEVEN},
    "llama with all biases": {"kind": "llama", "attention_bias": True},
}
CUTS = [
    *[(name, 2) for name in ("llama", "qwen3 tied and uneven", "qwen2 with biases and uneven")],
    *[(name, 4) for name in ("llama with all biases", "qwen3 tied and uneven")],  # two ranks hold one KV head
]
PLAIN = {"steps": 0}
SHAPES = [{"steps": 3, "topk": 1}, {"steps": 3, "topk": 3, "draft_tokens": 8}]
GREEDY = SamplingParams(max_tokens=10, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=10, ignore_eos=True, temperature=0.8, seed=7)
FILTERED = SamplingParams(max_tokens=10, ignore_eos=True, temperature=0.8, seed=8, top_p=0.9, top_k=40)
BATCHES = [[GREEDY, SAMPLED], [FILTERED]]  # without a filter the ranks exchange bests, with one whole rows


def prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 120, (length,), generator=generator).tolist() for length in (6, 41)[:count]]


@contextmanager
def opened(pair: Pair, **options: Any) -> Iterator[LLM]:
    """An LLM whose ranks end with the block."""
    llm = LLM(str(pair.model), draft=str(pair.draft), max_batch=4, **options)
    try:
        yield llm
    finally:
        llm.close()


def answers(llm: LLM, shape: Mapping[str, Any]) -> list[list[Completion]]:
    llm.reconfigure(**shape)
    return [llm.generate(prompts(len(batch)), batch) for batch in BATCHES]


def accept_length(found: list[list[Completion]]) -> float:
    emitted, cycles = (
        sum(getattr(each.statistics, what) for each in itertools.chain(*found)) for what in ("emitted", "cycles")
    )
    return emitted / cycles


@pytest.mark.parametrize(("name", "tp"), CUTS, ids=[f"{name}, tp {tp}" for name, tp in CUTS])
def test_ids_equal_those_of_one_rank_under_every_placement_and_shape(tmp_path: Path, name: str, tp: int) -> None:
    """And as many drafted tokens are accepted: a wrongly cut draft would change no token."""
    pair = write_pair(tmp_path, **MODELS[name])
    with opened(pair, steps=0) as alone, opened(pair, tp=tp, draft_tp=1) as llm:
        wanted = answers(alone, PLAIN)
        check_equal(alone, {}, wanted, answers(llm, PLAIN))
        for shape in SHAPES:
            length = accept_length(answers(alone, shape))
            assert length > 1.05, "acceptance has been seen at work"
            for each in placements(tp):
                found = answers(llm, {"draft_tp": str(each).removeprefix("tp "), **shape})
                check_equal(alone, shape, wanted, found)
                assert accept_length(found) == pytest.approx(length, rel=0.05), each


def check_equal(
    alone: LLM, shape: Mapping[str, int], wanted: list[list[Completion]], found: list[list[Completion]]
) -> None:
    for batch, one, other in zip(BATCHES, wanted, found, strict=True):
        leads = leads_at_differences(alone, prompts(len(batch)), batch, one, other)
        assert all(lead < NEAR_TIE for lead in leads), (shape, batch, leads)
