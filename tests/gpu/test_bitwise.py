"""bf16 on one CUDA device: one set of ids, whatever the steps, the tree and the batch, greedy and sampled.

The default model, which must have been pulled; prompts from SLIPSTREAM_PROMPTS (mt_bench.jsonl in that folder), or the
built-in ones.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from slipstream import LLM
from slipstream.config.sampling import SamplingParams
from slipstream.serve.completion import Completion
from tests.gpu.default_model import MODEL, NEEDS_MODEL, prompts_of

pytestmark = [*NEEDS_MODEL, pytest.mark.timeout(600)]

SHAPES = {"chain of 1": (1, 1, 1), "chain of 3": (3, 1, 3), "chain of 5": (5, 1, 5), "tree": (4, 4, 12)}
ASKED = {"greedy": SamplingParams(max_tokens=256), "sampled": SamplingParams(max_tokens=256, temperature=1.0, seed=7)}
NUM_ALONE = 12  # prompts that run one at a time: they take longest


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """Prompts that begin alike compute alike here; what a cache keeps was computed in other ways."""
    found = LLM(MODEL, device="cuda", steps=4, topk=4, draft_tokens=12, max_batch=64, prefix_cache=False, max_len=1536)
    yield found
    found.close()


@pytest.fixture(scope="module")
def prompts(llm: LLM) -> list[list[int]]:
    return prompts_of(llm)


def answers(llm: LLM, prompts: list[list[int]], params: SamplingParams, *, together: int) -> list[Completion]:
    found: list[Completion] = []
    for start in range(0, len(prompts), together):
        some = prompts[start : start + together]
        seeds = [None if params.seed is None else params.seed + start + place for place in range(len(some))]
        found += llm.generate(some, [replace(params, seed=seed) for seed in seeds])
    return found


@pytest.mark.parametrize("asked", ASKED)
def test_ids_do_not_depend_on_steps_tree_or_batch(llm: LLM, prompts: list[list[int]], asked: str) -> None:
    params = ASKED[asked]
    llm.reconfigure(steps=0)
    expected = [each.token_ids for each in answers(llm, prompts, params, together=64)]
    alone = answers(llm, prompts[:NUM_ALONE], params, together=1)
    assert [each.token_ids for each in alone] == expected[:NUM_ALONE]
    for steps, topk, draft_tokens in SHAPES.values():
        llm.reconfigure(steps=steps, topk=topk, draft_tokens=draft_tokens)
        for together, count in ((64, None), (7, None), (1, NUM_ALONE)):
            found = answers(llm, prompts[:count], params, together=together)
            assert [each.token_ids for each in found] == expected[:count], (steps, topk, together)
            assert sum(each.statistics.accepted for each in found) > 0


def test_log_probabilities_are_the_same_floats(llm: LLM, prompts: list[list[int]]) -> None:
    params = SamplingParams(max_tokens=48, logprobs=3)
    llm.reconfigure(steps=0)
    expected = [each.logprobs for each in answers(llm, prompts[:8], params, together=1)]
    for steps, topk, draft_tokens in ((0, 1, 0), *SHAPES.values()):
        llm.reconfigure(steps=steps, topk=topk, draft_tokens=draft_tokens)
        assert [each.logprobs for each in answers(llm, prompts[:8], params, together=8)] == expected
