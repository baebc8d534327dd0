"""Tokens with speculation equal those without: greedy and sampled, chains and trees, alone and in company."""

import pytest
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation

from tests.tiny_engine import run_all, some_prompts, tiny_draft, tiny_engine, tiny_target

SHAPES = [
    *[speculation(steps) for steps in (1, 2, 4, 8)],
    speculation(4, 4, 12),
    speculation(3, 8, 24),
    speculation(8, 2, 16),
    speculation(1, 5, 5),
]
PARAMS = [
    SamplingParams(max_tokens=40),
    SamplingParams(max_tokens=40, temperature=0.5, seed=7),
    SamplingParams(max_tokens=40, temperature=1.0, top_p=0.9, seed=8),
    SamplingParams(max_tokens=40, temperature=1.0, top_k=9, min_p=0.02, seed=9),
]
PROMPTS = some_prompts(8)


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "t05", "topp", "topk-minp"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tokens_equal_plain_decoding(shape: Speculation, params: SamplingParams) -> None:
    target = tiny_target()
    draft = tiny_draft(target)
    plain = run_all(tiny_engine(speculation(0), target=target, draft=draft, max_batch=1), PROMPTS, params)
    drafted = run_all(tiny_engine(shape, target=target, draft=draft), PROMPTS, params)
    assert [each.tokens for each in drafted] == [each.tokens for each in plain]
    assert sum(each.statistics.accepted for each in drafted) > 0
    for each in drafted:
        assert each.statistics.emitted == len(each.tokens) - 1
