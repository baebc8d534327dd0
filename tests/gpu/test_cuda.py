"""The same engine on one CUDA device."""

import pytest
import torch
from torch import nn

from slipstream.config.grammar import choice, json_schema, regex
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.draft.checkpoint import LoadedDraft
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.output import Answer
from slipstream.flow.request import Request
from tests.tiny_engine import NoStops, run_all, some_prompts, tiny_draft, tiny_engine, tiny_target
from tests.tiny_grammar import CONFIG, EOS, grammars

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

GRAMMARS = (
    regex("[1-9][0-9]{2,20}(;| the end)"),
    regex("the quick brown (fox|dog) jumps over the lazy dog"),
    choice(["the quick", "the quick brown fox", "lazy"]),
    json_schema({"enum": ["fox", "dog", [1, 2, 3]]}),
)


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


@pytest.mark.parametrize("shape", [speculation(4), speculation(4, 4, 12)], ids=str)
def test_answers_on_cuda_follow_their_grammars_as_those_on_the_cpu(shape: Speculation) -> None:
    def answers(engine: Engine) -> list[tuple[int, ...]]:
        found: dict[int, Answer] = {}
        for index, grammar in enumerate(GRAMMARS):
            params = SamplingParams(max_tokens=40, temperature=0.8, grammar=grammar)
            ending = Ending(stop_ids=(EOS,), matcher=NoStops(), grammar=grammars().open(grammar))
            engine.add(Request(id=index, prompt=(5, 6, 7), params=params, seed=index), ending)
        while engine.busy:
            found |= {news.request: news.answer for news in engine.step() if news.answer is not None}
        return [found[index].tokens for index in range(len(GRAMMARS))]

    expected = answers(tiny_engine(speculation(0), target=tiny_target(CONFIG), open_grammars=grammars))
    target = tiny_target(CONFIG)
    draft = on_cuda(tiny_draft(target))
    engine = tiny_engine(shape, target=target.to("cuda"), draft=draft, open_grammars=grammars)
    assert answers(engine) == expected
