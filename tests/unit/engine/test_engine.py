"""The host loop: ends, chunks, the context's end, aborts and refusals."""

import pytest

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Ending
from slipstream.flow.output import Answer, FinishReason
from slipstream.flow.prefill import Prefill
from slipstream.flow.request import Request
from tests.tiny_engine import NoStops, run_all, some_prompts, tiny_engine

GREEDY = SamplingParams(max_tokens=30)
SHAPES = [speculation(0), speculation(4), speculation(8, 2, 16)]


def answers(shape: Speculation, prompts: list[list[int]], params: SamplingParams, **kwargs: int) -> list[Answer]:
    return run_all(tiny_engine(shape, **kwargs), prompts, params)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_close_to_the_context_end_answers_stop_exactly_there(shape: Speculation) -> None:
    prompts = [list(range(length)) for length in (57, 60, 62, 63)]
    found = answers(shape, prompts, SamplingParams(max_tokens=50), max_len=64)
    assert [len(each.tokens) for each in found] == [7, 4, 2, 1]
    assert all(each.finish_reason is FinishReason.LENGTH for each in found)
    plain = answers(speculation(0), prompts, SamplingParams(max_tokens=50), max_len=64)
    assert [each.tokens for each in found] == [each.tokens for each in plain]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_stop_id_inside_a_run_ends_the_answer_there(shape: Speculation) -> None:
    prompt = some_prompts(1)
    full = answers(speculation(0), prompt, GREEDY)[0].tokens
    stop = full[12]
    cut = full[: full.index(stop) + 1]
    found = run_all(tiny_engine(shape), prompt, GREEDY, stop_ids=frozenset({stop}))[0]
    assert found.tokens == cut
    assert found.finish_reason is FinishReason.STOP
    assert found.statistics.emitted == len(cut) - 1


def test_max_tokens_of_one_gives_the_prefills_token_and_no_cycle() -> None:
    found = answers(speculation(4), some_prompts(3), SamplingParams(max_tokens=1))
    assert all(len(each.tokens) == 1 and each.statistics.cycles == 0 for each in found)


def test_an_abort_frees_everything_wherever_the_request_is() -> None:
    engine = tiny_engine(speculation(2), max_batch=2)
    free = engine.pages.num_free
    for index, prompt in enumerate(some_prompts(4)):
        engine.add(
            Request(id=index, prompt=tuple(prompt), params=GREEDY, seed=0), Ending(stop_ids=(), matcher=NoStops())
        )
    engine.step()
    for index in (0, 3, 3, 99):
        engine.abort(index)
    while engine.busy:
        engine.step()
    assert engine.pages.num_free == free
    assert not engine.executor._residents


def test_an_interrupted_prefill_leaves_no_pages_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(speculation(2))
    free = engine.pages.num_free

    def interrupted(work: Prefill) -> tuple[int | None, ...]:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.executor, "prefill", interrupted)
    for index, prompt in enumerate(some_prompts(4)):
        engine.add(
            Request(id=index, prompt=tuple(prompt), params=GREEDY, seed=0), Ending(stop_ids=(), matcher=NoStops())
        )
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    for index in range(4):
        engine.abort(index)
    assert engine.pages.num_free == free
    assert not engine.busy


REFUSED = [((), "empty"), (tuple(range(64)), "64 tokens but the context holds 64")]


@pytest.mark.parametrize(("prompt", "reason"), REFUSED, ids=["empty", "long"])
def test_a_prompt_that_can_never_run_is_refused_at_once(prompt: tuple[int, ...], reason: str) -> None:
    engine = tiny_engine(speculation(2), max_len=64)
    with pytest.raises(ValueError, match=reason):
        engine.add(Request(id=0, prompt=prompt, params=GREEDY, seed=0), Ending(stop_ids=(), matcher=NoStops()))


def test_shapes_change_on_resident_models_and_tokens_do_not() -> None:
    engine, prompts = tiny_engine(speculation(8, 2, 16)), some_prompts(3)
    expected = [each.tokens for each in run_all(engine, prompts, GREEDY)]
    for shape in (speculation(0), speculation(1), speculation(5), speculation(3, 3, 9), speculation(16, 4, 60)):
        engine.reconfigure(shape)
        assert [each.tokens for each in run_all(engine, prompts, GREEDY)] == expected


def test_more_branches_than_the_draft_has_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="topk 81 is more than the 80 tokens"):
        tiny_engine(speculation(1, 81, 81))


def test_acceptance_does_not_depend_on_the_batch() -> None:
    prompts = some_prompts(5)
    together = answers(speculation(4), prompts, GREEDY)
    alone = answers(speculation(4), prompts, GREEDY, max_batch=1)
    assert [each.runs for each in together] == [each.runs for each in alone]
