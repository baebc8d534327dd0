"""A conversation's next turn finds what the last answer left: tokens, draft entries and acceptance of a cold run."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.draft.checkpoint import LoadedDraft
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.output import Answer, FinishReason
from slipstream.flow.request import Request
from slipstream.models.decoder import Decoder
from slipstream.runner.graphs import GraphedCycle
from slipstream.runner.worker import Worker
from slipstream.schedule import scheduler
from tests.tiny_engine import TINY, NoStops, some_prompts, tiny_draft, tiny_engine, tiny_target

PAGE = 16
CONFIG = replace(TINY, num_layers=3)
GREEDY, SAMPLED = SamplingParams(max_tokens=32), SamplingParams(max_tokens=32, temperature=0.9)
SHAPES = {"plain": speculation(0), "chain": speculation(4), "tree": speculation(3, 3, 9)}
QUESTION = [(11 * place + 3) % 113 for place in range(37)]
NEXT = [5, 99, 41, 7, 7, 30]


@pytest.fixture(scope="module")
def models() -> tuple[Decoder, LoadedDraft]:
    target = tiny_target(CONFIG)
    return target, tiny_draft(target, captures=(1, 2, 3))


def make(models: tuple[Decoder, LoadedDraft], shape: Speculation, *, static: bool = False, **sizes: int) -> Engine:
    """An engine; static: with the code that a GPU captures."""
    target, draft = models
    sizes = {"num_pages": 64, **sizes}
    engine = tiny_engine(shape, target=target, draft=draft, **sizes)  # type: ignore[arg-type]
    worker = engine.executor
    assert isinstance(worker, Worker)
    if static:
        most = engine.config.max_batch
        worker.graphed = GraphedCycle(worker.cycle, max_batch=most, steps=shape.steps, capture=False)
    return engine


def put(engine: Engine, number: int, prompt: list[int], params: SamplingParams, *, steps: int | None = None) -> None:
    request = Request(id=number, prompt=tuple(prompt), params=params, seed=7, steps=steps)
    engine.add(request, Ending(stop_ids=(), matcher=NoStops()))


def finish(engine: Engine) -> dict[int, Answer]:
    """All answers; every page's place is checked after every step."""
    answers: dict[int, Answer] = {}
    while engine.busy:
        answers |= {news.request: news.answer for news in engine.step() if news.answer is not None}
        engine.pages.check([state.pages for state in engine.running.values()])
    return answers


def ask(engine: Engine, prompt: list[int], params: SamplingParams, *, steps: int | None = None) -> Answer:
    put(engine, 0, prompt, params, steps=steps)
    return finish(engine)[0]


def second_turn(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[Answer, dict[str, Tensor]]:
    """Its answer, and all entries of its context as they are when its first cycle is about to begin."""
    put(engine, 0, prompt, params)
    engine.prefill_all()
    worker, state = engine.executor, engine.running[0]
    assert isinstance(worker, Worker)
    assert worker.drafter is not None
    assert worker.entrance.page_features is not None
    slots = torch.tensor([page * PAGE + place for page in state.pages for place in range(PAGE)])
    own, drafts = slots[: len(prompt)], slots[1 : len(prompt)]
    full = list(state.pages[: len(prompt) // PAGE])
    entries = {
        "target keys": worker.pool.keys[:, own],
        "target values": worker.pool.values[:, own],
        "draft keys": worker.drafter.pool.keys[:, drafts],
        "draft values": worker.drafter.pool.values[:, drafts],
        "features": worker.entrance.page_features.features_PF[full],
    }
    entries = {name: entry.clone() for name, entry in entries.items()}
    return finish(engine)[0], entries


def different(found: dict[str, Tensor], expected: dict[str, Tensor], *, exact: bool) -> list[str]:
    """Names of what is not the same; what a GPU captures sums in another order (decision 9), so it is close."""
    near = 0.0 if exact else 1e-4
    return [name for name in expected if not torch.allclose(found[name], expected[name], rtol=near, atol=near)]


@pytest.mark.parametrize(
    ("name", "params", "static"),
    [
        *((name, params, False) for name in SHAPES for params in (GREEDY, SAMPLED)),
        *((name, GREEDY, True) for name in ("plain", "chain")),  # all that is captured
    ],
    ids=["plain", "plain-sampled", "chain", "chain-sampled", "tree", "tree-sampled", "plain-static", "chain-static"],
)
def test_a_second_turn_after_a_hit_equals_a_cold_one(
    models: tuple[Decoder, LoadedDraft], name: str, params: SamplingParams, static: bool
) -> None:
    shape = SHAPES[name]
    warm, cold = make(models, shape, static=static), make(models, shape, static=static)
    for length in (27, 33):  # the first answer's last token is on a page of its own, and in the middle of one
        first = ask(warm, [length, *QUESTION], replace(params, max_tokens=length))
        prompt = [length, *QUESTION, *first.tokens, *NEXT]
        found, entries = second_turn(warm, prompt, params)
        expected, cold_entries = second_turn(cold, prompt, params)
        assert expected.num_cached == 0
        assert found.num_cached == (38 + length - 1) // PAGE * PAGE
        assert (found.tokens, found.runs) == (expected.tokens, expected.runs)
        assert found.statistics.named() == expected.statistics.named()
        assert different(entries, cold_entries, exact=not static) == []
        cold.pages.clear()


@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
@pytest.mark.parametrize("ring", [4, 32])
@pytest.mark.parametrize("steps", [0, 1])
def test_what_waited_for_the_draft_is_written_before_others_read_it(
    models: tuple[Decoder, LoadedDraft], steps: int | None, ring: int, static: bool
) -> None:
    """A request without speculation leaves up to a ring's positions waiting; a companion speculates meanwhile."""
    warm, cold = (make(models, speculation(3), static=static, feature_ring=ring) for _ in range(2))
    put(warm, 0, QUESTION, replace(GREEDY, max_tokens=44), steps=steps)
    put(warm, 1, [4, 5, 6], replace(GREEDY, max_tokens=20))
    prompt = [*QUESTION, *finish(warm)[0].tokens, *NEXT]
    found, entries = second_turn(warm, prompt, GREEDY)
    expected, cold_entries = second_turn(cold, prompt, GREEDY)
    assert found.num_cached == 80 > expected.num_cached
    assert (found.tokens, found.runs) == (expected.tokens, expected.runs)
    assert different(entries, cold_entries, exact=not static) == []


def test_many_conversations_of_several_turns_in_one_batch_equal_cold_ones(models: tuple[Decoder, LoadedDraft]) -> None:
    warm, cold = make(models, SHAPES["tree"], max_batch=4), make(models, SHAPES["tree"], max_batch=1)
    talks = some_prompts(4, longest=40)
    for turn in range(3):
        for number, talk in enumerate(talks):
            put(warm, number, talk, replace(SAMPLED, max_tokens=21 + turn), steps=(None, 0, 1)[number % 3])
        answers = finish(warm)
        for number, talk in enumerate(talks):
            cold.pages.clear()
            expected = ask(cold, talk, replace(SAMPLED, max_tokens=21 + turn))
            assert answers[number].tokens == expected.tokens
            assert turn == 0 or answers[number].num_cached >= (len(talk) - 3) // PAGE * PAGE
            talk += [*expected.tokens, number, turn]
    assert warm.pages.num_free == warm.config.num_pages - 1


def test_a_stop_inside_a_run_publishes_nothing_behind_it(models: tuple[Decoder, LoadedDraft]) -> None:
    engine = make(models, speculation(4))
    full = ask(make(models, speculation(4)), QUESTION, GREEDY)
    for count in (20, 25, 26, 27):
        stop = full.tokens[count]
        kept = full.tokens[: full.tokens.index(stop) + 1]
        request = Request(id=0, prompt=tuple(QUESTION), params=GREEDY, seed=7)
        engine.add(request, Ending(stop_ids={stop}, matcher=NoStops()))
        assert finish(engine)[0].tokens == kept
        known = engine.pages.match((*QUESTION, *full.tokens))
        assert len(known) == (len(QUESTION) + len(kept) - 1) // PAGE
        engine.pages.clear()


@pytest.mark.parametrize("moment", [0, 1, 3, 12])
def test_an_aborted_answer_publishes_nothing_and_loses_no_page(
    models: tuple[Decoder, LoadedDraft], moment: int
) -> None:
    engine = make(models, speculation(3), prefill_chunk=16)
    put(engine, 0, QUESTION, GREEDY)
    for _ in range(moment):
        engine.step()
    before = engine.pages.statistics.published_pages
    engine.abort(0)
    engine.pages.check([])
    assert engine.pages.num_free == engine.config.num_pages - 1
    assert engine.pages.statistics.published_pages == before <= len(QUESTION) // PAGE


def test_an_interrupted_cycle_publishes_nothing(
    models: tuple[Decoder, LoadedDraft], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(models, speculation(3))
    put(engine, 0, QUESTION, GREEDY)
    for _ in range(12):
        engine.step()

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.executor.cycle, "commit", interrupted)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.abort(0)
    engine.pages.check([])
    assert len(engine.pages.match((*QUESTION, *NEXT))) == len(QUESTION) // PAGE
    assert engine.pages.num_free == engine.config.num_pages - 1


def test_preempted_requests_and_the_turns_after_them_get_the_tokens_of_cold_ones(
    models: tuple[Decoder, LoadedDraft], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "HEADROOM", 8)  # so that requests have to grow
    tight, cold = make(models, speculation(3), num_pages=12), make(models, speculation(3), max_batch=1)
    talks = [[number, *QUESTION[:20]] for number in range(3)]
    preemptions = 0
    for _ in range(2):
        for number, talk in enumerate(talks):
            put(tight, number, talk, GREEDY)
        answers = finish(tight)
        preemptions += sum(answer.preemptions for answer in answers.values())
        for number, talk in enumerate(talks):
            cold.pages.clear()
            assert answers[number].tokens == ask(cold, talk, GREEDY).tokens
            assert answers[number].finish_reason is FinishReason.LENGTH
            talk += [*answers[number].tokens, 9]
    assert preemptions > 0
    assert tight.pages.num_free == 11


def test_without_a_prefix_cache_nothing_is_kept(models: tuple[Decoder, LoadedDraft]) -> None:
    engine = make(models, speculation(3), prefix_cache=False)
    first = ask(engine, QUESTION, GREEDY)
    assert ask(engine, [*QUESTION, *first.tokens, *NEXT], GREEDY).num_cached == 0
    assert engine.pages.statistics.published_pages == 0
