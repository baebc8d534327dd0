"""Stops inside accepted runs, of chains and trees: they beat the length, and all that is counted is what was kept."""

from dataclasses import replace
from functools import cache

import pytest

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Ending
from slipstream.flow.output import Answer, FinishReason
from slipstream.flow.request import Request
from slipstream.verify.finish import Matcher
from tests.tiny_engine import NoStops, StopAfter, some_prompts, tiny_engine

SHAPES = {"chain": speculation(4), "tree": speculation(3, 3, 9)}
GREEDY = SamplingParams(max_tokens=40, logprobs=1)


def answer(
    shape: Speculation,
    prompt: list[int],
    params: SamplingParams,
    *,
    stop_ids: frozenset[int] = frozenset(),
    matcher: Matcher | None = None,
) -> Answer:
    engine = tiny_engine(shape)
    request = Request(id=0, prompt=tuple(prompt), params=params, seed=0)
    engine.add(request, Ending(stop_ids=stop_ids, matcher=matcher or NoStops()))
    while engine.busy:
        for news in engine.step():
            if news.answer is not None:
                engine.pages.check([])
                return news.answer
    raise AssertionError("no answer came")


@cache
def inside_a_run(shape: Speculation) -> tuple[list[int], Answer, int]:
    """A prompt, its answer, and how many tokens that has up to one inside a run, an accepted draft seen first there."""
    for prompt in some_prompts(30):
        full, start = answer(shape, prompt, GREEDY), 1
        for kept in full.runs:
            for count in range(start + 1, start + kept):  # the run's last token is the target's own
                if full.tokens.index(full.tokens[count - 1]) == count - 1:
                    return prompt, full, count
            start += kept
    raise AssertionError("no run is long enough")


def check_counts(found: Answer, full: Answer, count: int) -> None:
    """Usage, runs, counts and log-probabilities are of the kept tokens alone."""
    assert found.tokens == full.tokens[:count]
    assert found.statistics.emitted == sum(found.runs) == count - 1
    assert found.statistics.cycles == len(found.runs) == sum(found.statistics.histogram)
    assert found.statistics.accepted == count - 1 - len(found.runs)
    assert found.logprobs is not None
    assert [each.chosen.token for each in found.logprobs] == list(found.tokens)


@pytest.mark.parametrize("how", ["id", "string"])
@pytest.mark.parametrize("spare", [0, 1, 20])
@pytest.mark.parametrize("name", SHAPES)
def test_a_stop_inside_a_run_beats_a_length_cap_on_the_same_token_or_later(name: str, spare: int, how: str) -> None:
    prompt, full, count = inside_a_run(SHAPES[name])
    params = replace(GREEDY, max_tokens=count + spare)
    stop_ids = frozenset({full.tokens[count - 1]}) if how == "id" else frozenset[int]()
    matcher = StopAfter(count) if how == "string" else NoStops()
    found = answer(SHAPES[name], prompt, params, stop_ids=stop_ids, matcher=matcher)
    assert found.finish_reason is FinishReason.STOP
    check_counts(found, full, count)


@pytest.mark.parametrize("name", SHAPES)
def test_a_stop_cuts_tokens_that_were_accepted_behind_it(name: str) -> None:
    prompt, full, count = inside_a_run(SHAPES[name])
    found = answer(SHAPES[name], prompt, GREEDY, stop_ids=frozenset({full.tokens[count - 1]}))
    before = sum(found.runs[:-1])
    assert found.runs[:-1] == full.runs[: len(found.runs) - 1]
    assert found.runs[-1] < full.runs[len(found.runs) - 1]
    assert before + found.runs[-1] == count - 1


@pytest.mark.parametrize("name", SHAPES)
def test_a_length_cap_before_the_stop_in_the_same_run_ends_the_answer_there(name: str) -> None:
    prompt, full, count = inside_a_run(SHAPES[name])
    params = replace(GREEDY, max_tokens=count - 1)
    found = answer(SHAPES[name], prompt, params, stop_ids=frozenset({full.tokens[count - 1]}))
    assert found.finish_reason is FinishReason.LENGTH
    check_counts(found, full, count - 1)


@pytest.mark.parametrize("name", SHAPES)
def test_the_kept_tokens_are_plain_decodings(name: str) -> None:
    prompt, full, count = inside_a_run(SHAPES[name])
    found = answer(speculation(0), prompt, GREEDY, stop_ids=frozenset({full.tokens[count - 1]}))
    assert (found.tokens, found.finish_reason) == (full.tokens[:count], FinishReason.STOP)
