"""Every sampling parameter gives the slow loop's answer: no speculation, chain and tree, alone and in company.

One engine answers all cases of a shape, so each has companions that ask for other things, come, go and are aborted.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.logprobs import Logprobs
from slipstream.flow.output import Answer, FinishReason, Progress
from slipstream.flow.request import Request
from slipstream.verify.finish import Matcher
from tests.reference_sampler import Sampled, sample
from tests.tiny_engine import NoStops, some_prompts, tiny_engine, tiny_target

STOPS = frozenset(range(0, 120, 17))
LENGTH = 14
WARM = {"max_tokens": LENGTH, "temperature": 0.9, "seed": 40}
CASES = {
    "greedy": SamplingParams(max_tokens=LENGTH),
    "temperature": SamplingParams(**WARM),
    "seed": SamplingParams(**{**WARM, "seed": 41}),
    "top_p": SamplingParams(**WARM, top_p=0.8),
    "top_k": SamplingParams(**WARM, top_k=6),
    "min_p": SamplingParams(**WARM, min_p=0.1),
    "max_tokens": SamplingParams(max_tokens=7),
    "min_tokens": SamplingParams(max_tokens=LENGTH, min_tokens=8, stop_ids=(22, 32)),
    "min_tokens-warm": SamplingParams(**WARM, min_tokens=LENGTH),
    "ignore_eos": SamplingParams(max_tokens=LENGTH, ignore_eos=True),
    "stop_ids": SamplingParams(max_tokens=LENGTH, ignore_eos=True, stop_ids=(77, 109)),
    "stop": SamplingParams(max_tokens=LENGTH, ignore_eos=True, stop=("0 1", "1 1 0")),
    "presence": SamplingParams(max_tokens=LENGTH, presence_penalty=2.0, ignore_eos=True),
    "frequency": SamplingParams(max_tokens=LENGTH, frequency_penalty=1.0, ignore_eos=True),
    "rewarded": SamplingParams(**WARM, frequency_penalty=-1.5, presence_penalty=-0.5, ignore_eos=True),
    "repetition": SamplingParams(max_tokens=LENGTH, repetition_penalty=1.1, ignore_eos=True),
    "repetition-warm": SamplingParams(**WARM, repetition_penalty=0.7, ignore_eos=True),
    "logit_bias": SamplingParams(**WARM, logit_bias={3: 6.0, 50: -100, 119: 4.5}),
    "bad_words": SamplingParams(
        max_tokens=LENGTH, ignore_eos=True, bad_word_ids=((14,), (50, 80), (109, 109), (60, 60, 60), (118, 3))
    ),
    "logprobs-0": SamplingParams(**WARM, top_k=4, logprobs=0),
    "logprobs-5": SamplingParams(max_tokens=LENGTH, ignore_eos=True, logprobs=5),
    "all": SamplingParams(
        **WARM,
        top_k=30,
        top_p=0.95,
        min_p=0.001,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={7: 3.0, 90: 2.0},
        bad_word_ids=((14,), (60, 61), (3, 8, 9)),
        min_tokens=7,
        logprobs=3,
    ),
}
SHORT = ("max_tokens", "stop_ids", "stop")  # so short that no draft may be accepted
PROMPTS = some_prompts(2, longest=30)
SHAPES = {"plain": speculation(0), "chain": speculation(4), "tree": speculation(3, 3, 9)}
COMPANY = {"alone": 1, "company": 8}


class Parity:
    """A matcher of stop strings over tokens' parities, so that they span tokens."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.text = stops, ""

    def push(self, token_id: int) -> bool:
        self.text += f" {token_id % 2}"
        return self.text.endswith(tuple(self.stops)) if self.stops else False


def ending(params: SamplingParams) -> Ending:
    stop_ids = set(params.stop_ids) | (set() if params.ignore_eos else STOPS)
    return Ending(stop_ids=stop_ids, matcher=matcher(params))


def matcher(params: SamplingParams) -> Matcher:
    return Parity(params.stop) if params.stop else NoStops()


def requests() -> list[Request]:
    """Each case with each prompt, in an order in which neighbours differ."""
    pairs = [(params, prompt) for prompt in PROMPTS for params in CASES.values()]
    return [
        Request(id=index, prompt=tuple(prompt), params=params, seed=(params.seed or 0) + 1000 * index)
        for index, (params, prompt) in enumerate(pairs)
    ]


@pytest.fixture(scope="module")
def reference() -> dict[int, Sampled]:
    target, found = tiny_target(), {}
    for each in requests():
        end = ending(each.params)
        found[each.id] = sample(
            target, list(each.prompt), each.params, seed=each.seed, stop_ids=end.stop_ids, matcher=end.matcher
        )
    return found


class Run:
    """All answers of one engine, and what its steps told on the way."""

    def __init__(self, shape: Speculation, max_batch: int) -> None:
        self.answers: dict[int, Answer] = {}
        self.told: dict[int, list[Progress]] = {}
        engine = tiny_engine(shape, max_batch=max_batch)
        for each in requests():
            engine.add(each, ending(each.params))
        self.steps = 0
        while engine.busy:
            if max_batch > 1:
                self._company(engine)
            for news in engine.step():
                self.told.setdefault(news.request, []).append(news)
                if news.answer is not None:
                    self.answers[news.request] = news.answer
            self.steps += 1

    def _company(self, engine: Engine) -> None:
        """Now and then somebody joins who leaves before the end."""
        cases = list(CASES.values())
        if self.steps % 5 == 1 and self.steps < 60:
            params = replace(cases[self.steps % len(cases)], max_tokens=400, ignore_eos=True)
            engine.add(
                Request(id=1000 + self.steps, prompt=(5, 6, 7), params=params, seed=self.steps),
                Ending(stop_ids=(), matcher=NoStops()),
            )
        engine.abort(1000 + self.steps - 13)


@pytest.fixture(scope="module")
def runs() -> dict[tuple[str, str], Run]:
    return {
        (shape, company): Run(SHAPES[shape], max_batch) for shape in SHAPES for company, max_batch in COMPANY.items()
    }


@pytest.mark.parametrize("company", COMPANY)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_a_parameter_gives_the_slow_loops_answer(
    runs: dict[tuple[str, str], Run], reference: dict[int, Sampled], case: str, shape: str, company: str
) -> None:
    run, accepted = runs[shape, company], 0
    for request in requests():
        if request.params is not CASES[case]:
            continue
        answer, wanted = run.answers[request.id], reference[request.id]
        assert list(answer.tokens) == wanted.tokens
        assert_logprobs(answer.logprobs, wanted, request.params)
        news = run.told[request.id]
        assert tuple(token for each in news for token in each.new_tokens) == answer.tokens
        if answer.logprobs is not None:
            assert tuple(each for piece in news for each in piece.logprobs or ()) == answer.logprobs
        ended = answer.tokens[-1] in ending(request.params).stop_ids or request.params.stop
        if len(answer.tokens) < request.params.max_tokens:
            assert ended
            assert answer.finish_reason is FinishReason.STOP
        accepted += answer.statistics.accepted
    assert case in SHORT or (accepted > 0) == (shape != "plain")


def assert_logprobs(found: tuple[Logprobs, ...] | None, wanted: Sampled, params: SamplingParams) -> None:
    assert (found is None) == (params.logprobs is None)
    if found is None or params.logprobs is None:
        return
    assert [each.chosen.token for each in found] == wanted.tokens
    for each, raw, processed in zip(found, wanted.raw, wanted.processed, strict=True):
        assert [top.token for top in each.top] == raw.topk(params.logprobs).indices.tolist()
        for token in (each.chosen, *each.top):
            assert math.isclose(token.raw, raw[token.token], abs_tol=1e-4)
            assert math.isclose(token.processed, processed[token.token], abs_tol=1e-4)
        assert math.isfinite(each.chosen.processed)


def test_the_cases_do_what_they_are_for(reference: dict[int, Sampled]) -> None:
    """A matrix of parameters that change nothing would prove nothing."""
    by_case = {name: [] for name in CASES}
    for request in requests():
        name = next(name for name, params in CASES.items() if params is request.params)
        by_case[name].append(reference[request.id].tokens)
    assert len({str(answers) for answers in by_case.values()}) >= len(CASES) - 3
    for answer in by_case["min_tokens"]:
        assert len(answer) >= 8
        assert not {*STOPS, 22, 32} & set(answer[:8])
    assert any(len(answer) < LENGTH for answer in by_case["stop"])
    assert all(14 not in answer for answer in by_case["bad_words"])


@pytest.mark.parametrize("case", ["all", "min_tokens", "frequency", "logprobs-5"])
def test_a_request_that_was_displaced_goes_on_as_if_nothing_had_been(reference: dict[int, Sampled], case: str) -> None:
    request = next(each for each in requests() if each.params is CASES[case])
    engine, told = tiny_engine(speculation(2), max_batch=1), []
    engine.add(request, ending(request.params))
    for step in range(200):
        if step == 3:
            urgent = Request(id=999, prompt=(4, 4), params=SamplingParams(max_tokens=5), seed=0, priority=-1)
            engine.add(urgent, Ending(stop_ids=(), matcher=NoStops()))
        told += [news for news in engine.step() if news.request == request.id]
        if not engine.busy:
            break
    answer = told[-1].answer
    assert answer is not None
    assert answer.preemptions == 1
    assert list(answer.tokens) == reference[request.id].tokens
    assert_logprobs(answer.logprobs, reference[request.id], request.params)


def test_nobody_who_asks_for_nothing_costs_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without such requests, scores are drawn from as they are."""

    def refuse(*_: object) -> None:
        raise AssertionError("nothing is to be processed")

    monkeypatch.setattr("slipstream.verify.processors.process", refuse)
    engine = tiny_engine(speculation(3))
    engine.add(Request(id=0, prompt=(1, 2, 3), params=CASES["top_p"], seed=1), ending(CASES["top_p"]))
    while engine.busy:
        engine.step()
    assert torch.is_inference_mode_enabled() is False
