"""An answer that follows a grammar is the slow loop's: no speculation, chain and tree, alone and in company."""

import json
import re
from typing import Any

import pytest

from slipstream.config.grammar import Grammar, choice, json_schema, lark, regex
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.output import Answer, FinishReason
from slipstream.flow.request import Request
from tests.reference_sampler import Sampled, sample
from tests.tiny_engine import NoStops, some_prompts, tiny_engine, tiny_target
from tests.tiny_grammar import CONFIG, EOS, allowed, ended, grammars, spell

LENGTH = 24
WARM = {"max_tokens": LENGTH, "temperature": 0.9, "seed": 40}
PERSON = json_schema(
    {
        "type": "object",
        "properties": {"quick": {"enum": ["fox", "dog"]}, "jumps": {"type": "boolean"}},
        "required": ["quick", "jumps"],
        "additionalProperties": False,
    }
)
NUMBERS = regex("[1-9][0-9]{2,20}(;| the end)")
FIXED = regex("the quick brown fox jumps over the lazy (dog|cat), then the dog sleeps")
CHOICES = choice(["the quick", "the quick brown fox", "lazy \u4f60\u597d", 'a "quoted" word'])
ARITHMETIC = lark('start: sum\nsum: number ("+" number)*\nnumber: /[0-9]{1,4}/')

CASES = {
    "schema": SamplingParams(max_tokens=60, grammar=PERSON),
    "schema-warm": SamplingParams(**{**WARM, "max_tokens": 60}, grammar=PERSON),
    "regex": SamplingParams(max_tokens=LENGTH, grammar=NUMBERS),
    "regex-warm": SamplingParams(**WARM, grammar=NUMBERS, logprobs=2),
    "forced": SamplingParams(**{**WARM, "max_tokens": 60}, grammar=FIXED),
    "choice": SamplingParams(max_tokens=LENGTH, grammar=CHOICES),
    "choice-warm": SamplingParams(**{**WARM, "temperature": 3.0}, grammar=CHOICES),
    "lark": SamplingParams(max_tokens=LENGTH, grammar=ARITHMETIC),
    "lark-warm": SamplingParams(**WARM, top_p=0.9, grammar=ARITHMETIC, ignore_eos=True),
    "short": SamplingParams(max_tokens=5, grammar=FIXED),
    "penalties": SamplingParams(**WARM, grammar=NUMBERS, frequency_penalty=1.5, logit_bias={EOS: -50}),
    "banned": SamplingParams(max_tokens=LENGTH, grammar=CHOICES, min_tokens=LENGTH),
    "free": SamplingParams(max_tokens=LENGTH),
}
PROMPTS = some_prompts(2, longest=30, vocab_size=CONFIG.vocab_size)
SHAPES = {"plain": speculation(0), "chain": speculation(4), "tree": speculation(3, 3, 9)}
COMPANY = {"alone": 1, "company": 8}


def requests() -> list[Request]:
    """Each case with each prompt."""
    pairs = [(params, prompt) for prompt in PROMPTS for params in CASES.values()]
    return [
        Request(id=index, prompt=tuple(prompt), params=params, seed=(params.seed or 0) + 1000 * index)
        for index, (params, prompt) in enumerate(pairs)
    ]


def ending(params: SamplingParams) -> Ending:
    stop_ids = set() if params.ignore_eos else {EOS}
    grammar = None if params.grammar is None else grammars().open(params.grammar)
    return Ending(stop_ids=stop_ids, matcher=NoStops(), grammar=grammar)


def says(grammar: Grammar | None) -> dict[str, Any]:
    if grammar is None:
        return {}
    return {"allowed": lambda answer: allowed(grammar, answer), "ended": lambda answer: ended(grammar, answer)}


@pytest.fixture(scope="module")
def reference() -> dict[int, Sampled]:
    target, found = tiny_target(CONFIG), {}
    for each in requests():
        end = ending(each.params)
        found[each.id] = sample(
            target,
            list(each.prompt),
            each.params,
            seed=each.seed,
            stop_ids=end.stop_ids,
            matcher=end.matcher,
            **says(each.params.grammar),
        )
    return found


def engine_for(shape: Speculation, max_batch: int) -> Engine:
    return tiny_engine(shape, target=tiny_target(CONFIG), max_batch=max_batch, open_grammars=grammars)


@pytest.fixture(scope="module")
def runs() -> dict[tuple[str, str], dict[int, Answer]]:
    found = {}
    for shape in SHAPES:
        for company, max_batch in COMPANY.items():
            found[shape, company] = answers(SHAPES[shape], max_batch, requests())
    return found


def answers(shape: Speculation, max_batch: int, asked: list[Request]) -> dict[int, Answer]:
    engine = engine_for(shape, max_batch)
    for each in asked:
        engine.add(each, ending(each.params))
    found: dict[int, Answer] = {}
    while engine.busy:
        found |= {news.request: news.answer for news in engine.step() if news.answer is not None}
    return found


@pytest.mark.parametrize("company", COMPANY)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_a_grammar_gives_the_slow_loops_answer(
    runs: dict[tuple[str, str], dict[int, Answer]], reference: dict[int, Sampled], case: str, shape: str, company: str
) -> None:
    for request in requests():
        if request.params is not CASES[case]:
            continue
        answer = runs[shape, company][request.id]
        assert list(answer.tokens) == reference[request.id].tokens
        grammar = request.params.grammar
        if grammar is None:
            continue
        done = ended(grammar, answer.tokens)
        assert done or len(answer.tokens) == request.params.max_tokens
        assert answer.finish_reason is (FinishReason.STOP if done else FinishReason.LENGTH)


def test_the_texts_are_what_their_grammars_describe(reference: dict[int, Sampled]) -> None:
    for request in requests():
        text, params = spell(reference[request.id].tokens).decode(errors="replace"), request.params
        if len(reference[request.id].tokens) == params.max_tokens:
            continue
        if params.grammar is PERSON:
            found = json.loads(text)
            assert found["quick"] in ("fox", "dog")
            assert isinstance(found["jumps"], bool)
        if params.grammar in (NUMBERS, FIXED):
            assert re.fullmatch(params.grammar.text, text)
        if params.grammar is CHOICES:
            assert text in json.loads(CHOICES.text)


def test_forced_tokens_are_drafts_that_are_accepted(runs: dict[tuple[str, str], dict[int, Answer]]) -> None:
    """The draft knows nothing of the grammar, whose text is forced but for one word."""
    request = next(each for each in requests() if each.params is CASES["forced"])
    for shape in ("chain", "tree"):
        answer = runs[shape, "alone"][request.id]
        assert answer.statistics.accept_length > 2
        assert answer.finish_reason is FinishReason.STOP


def test_a_request_that_was_displaced_follows_its_grammar_where_it_was(reference: dict[int, Sampled]) -> None:
    for name in ("schema-warm", "regex-warm", "forced"):
        request = next(each for each in requests() if each.params is CASES[name])
        engine, told = engine_for(speculation(2), 1), []
        engine.add(request, ending(request.params))
        step = 0
        while engine.busy:
            if step == 2:
                urgent = Request(id=999, prompt=(4, 4), params=SamplingParams(max_tokens=3), seed=0, priority=-1)
                engine.add(urgent, Ending(stop_ids=(), matcher=NoStops()))
            told += [news for news in engine.step() if news.request == request.id]
            step += 1
        answer = told[-1].answer
        assert answer is not None
        assert answer.preemptions == 1
        assert list(answer.tokens) == reference[request.id].tokens
