"""Log-probabilities of a prompt's tokens: whole whatever is cached, the same in any chunks and company, never held."""

import pytest
import torch

from slipstream.attention.dense import DenseAttend
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import speculation
from slipstream.engine.engine import Engine
from slipstream.flow.output import Answer, Progress
from slipstream.flow.request import Request
from slipstream.models.decoder import Decoder
from slipstream.runner.prompts import ROWS
from slipstream.schedule import scheduler
from tests.tiny_engine import CPU, run_all, some_prompts, tiny_engine, tiny_target
from tests.to_the_end import finish, put

ASKED = SamplingParams(max_tokens=6, prompt_logprobs=3)
BARE = SamplingParams(max_tokens=6)


def by_the_model(target: Decoder, prompt: list[int]) -> torch.Tensor:
    """log p(every id | the prompt so far), at once."""
    with torch.inference_mode():
        hidden = target(torch.tensor(prompt), DenseAttend(1, len(prompt), device=CPU))
        return target.logits(hidden.final_TD).log_softmax(-1)


def values(answer: Answer) -> list[list[tuple[int, float]]]:
    assert answer.prompt_logprobs is not None
    return [[(each.token, each.raw) for each in (found.chosen, *found.top)] for found in answer.prompt_logprobs]


def fresh(**settings: int) -> Engine:
    return tiny_engine(speculation(3), **settings)


def test_they_are_the_models_own_one_for_each_token_but_the_first() -> None:
    prompt, target = some_prompts(1, longest=400, seed=8)[0], tiny_target()
    (answer,) = run_all(tiny_engine(speculation(3), target=target), [prompt], ASKED)
    wanted = by_the_model(target, prompt)
    found = answer.prompt_logprobs
    assert found is not None
    assert [each.chosen.token for each in found] == prompt[1:]
    for position, each in enumerate(found):
        likely = float(wanted[position, prompt[position + 1]])
        assert each.chosen.raw == each.chosen.processed == pytest.approx(likely, abs=1e-4)
        best = wanted[position].topk(3)
        assert [one.token for one in each.top] == best.indices.tolist()
        assert [one.raw for one in each.top] == pytest.approx(best.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("chunk", [16, 32, 512])
def test_chunks_companions_and_a_warm_cache_change_none_of_them(chunk: int) -> None:
    prompts = [each * 4 for each in some_prompts(5)]
    alone = [values(run_all(fresh(max_batch=1), [prompt], ASKED)[0]) for prompt in prompts]
    engine = fresh(prefill_chunk=chunk)
    run_all(engine, prompts, BARE)
    together = run_all(engine, prompts, ASKED)
    assert [values(each) for each in together] == alone
    assert all(each.num_cached == 0 for each in together)
    assert [each.tokens for each in together] == [each.tokens for each in run_all(engine, prompts, BARE)]


def test_who_asks_for_none_still_finds_what_another_computed() -> None:
    engine, prompt = fresh(), list(range(70))
    (asked,) = run_all(engine, [prompt], ASKED)
    (bare,) = run_all(engine, [prompt], BARE)
    assert bare.num_cached == 64
    assert bare.prompt_logprobs is None
    assert bare.tokens == asked.tokens


def test_they_come_with_the_first_token_and_not_again() -> None:
    engine = fresh(prefill_chunk=16)
    put(engine, Request(id=0, prompt=tuple(range(50)), params=ASKED, seed=0))
    news: list[Progress] = []
    while engine.busy:
        news += engine.step()
    assert [len(each.prompt_logprobs or ()) for each in news] == [49, *[0] * (len(news) - 1)]


def test_a_prompt_of_one_token_has_none() -> None:
    (answer,) = run_all(fresh(), [[5]], ASKED)
    assert answer.prompt_logprobs == ()


def test_requests_that_lose_their_place_have_each_of_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "HEADROOM", 8)
    params = SamplingParams(max_tokens=40, prompt_logprobs=1)
    prompts = some_prompts(5)
    engine = fresh(num_pages=36, page_size=4, prefill_chunk=16)
    put(engine, *(Request(id=at, prompt=tuple(each), params=params, seed=0) for at, each in enumerate(prompts)))
    found = finish(engine)
    assert sum(answer.preemptions for answer in found.values()) > 1
    for at, prompt in enumerate(prompts):
        (alone,) = run_all(fresh(max_batch=1), [prompt], params)
        assert values(found[at]) == values(alone)


def test_one_that_is_displaced_within_its_prompt_begins_anew() -> None:
    engine, long = fresh(max_batch=1, prefill_chunk=16), tuple(range(100))
    put(engine, Request(id=0, prompt=long, params=ASKED, seed=0))
    engine.step()
    engine.step()
    put(engine, Request(id=1, prompt=(1, 2, 3), params=BARE, seed=0, priority=-1))
    found = finish(engine)
    assert found[0].preemptions == 1
    assert values(found[0]) == values(run_all(fresh(), [list(long)], ASKED)[0])


def test_scores_of_a_long_prompt_are_never_held_together(monkeypatch: pytest.MonkeyPatch) -> None:
    target, sizes = tiny_target(), []
    logits = target.logits
    monkeypatch.setattr(target, "logits", lambda rows: sizes.append(rows.shape[0]) or logits(rows))
    run_all(tiny_engine(speculation(0), target=target), [[7] * 400], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert max(sizes) == ROWS
    assert sum(sizes) == 399 + 1
