"""The same engine on one CUDA device."""

import pytest
import torch
from torch import nn

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import speculation
from slipstream.draft.checkpoint import LoadedDraft
from tests.tiny_engine import run_all, some_prompts, tiny_draft, tiny_engine, tiny_target

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def on_cuda(draft: LoadedDraft) -> LoadedDraft:
    model: nn.Module = draft.model.to("cuda")
    return LoadedDraft(
        model=model,  # type: ignore[arg-type]
        target_ids=draft.target_ids.to("cuda"),
        shares_embedding=draft.shares_embedding,
        convention=draft.convention,
    )


@pytest.mark.parametrize("shape", [speculation(4), speculation(4, 4, 12)], ids=str)
@pytest.mark.parametrize("params", [SamplingParams(max_tokens=32), SamplingParams(max_tokens=32, temperature=0.8)])
def test_fp32_tokens_on_cuda_equal_those_on_the_cpu(shape: object, params: SamplingParams) -> None:
    prompts = some_prompts(4)
    expected = [each.tokens for each in run_all(tiny_engine(speculation(0)), prompts, params)]
    target = tiny_target()
    draft = on_cuda(tiny_draft(target))
    engine = tiny_engine(shape, target=target.to("cuda"), draft=draft)  # type: ignore[arg-type]
    assert [each.tokens for each in run_all(engine, prompts, params)] == expected
