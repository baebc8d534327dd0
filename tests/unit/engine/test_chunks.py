"""Prompts cut into chunks of any size leave what single-shot prefill leaves, bit for bit, for target and draft."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import speculation
from slipstream.draft.checkpoint import LoadedDraft
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.request import Request
from slipstream.models.decoder import Decoder
from slipstream.runner.worker import Worker
from tests.tiny_engine import TINY, NoStops, some_prompts, tiny_draft, tiny_engine, tiny_target

SIZES = [1, 2, 3, 5, 7, 8, 16, 17, 31, 64, 100, 128, 255, 256, 511, 512]
NUM_PROMPT, PAGE_SIZE = 600, 16
GREEDY = SamplingParams(max_tokens=12)
CONFIG = replace(TINY, num_layers=3, max_position=1024)


@pytest.fixture(scope="module")
def models() -> tuple[Decoder, LoadedDraft]:
    target = tiny_target(CONFIG)
    return target, tiny_draft(target, captures=(1, 2, 3))


@pytest.fixture(scope="module")
def whole(models: tuple[Decoder, LoadedDraft]) -> dict[str, Tensor]:
    """What one chunk for all leaves."""
    return left_by(entered(models, prefill_chunk=1024))


def prompt() -> tuple[int, ...]:
    return tuple(some_prompts(1, longest=NUM_PROMPT, seed=5)[0] * NUM_PROMPT)[:NUM_PROMPT]


def entered(models: tuple[Decoder, LoadedDraft], *, prefill_chunk: int, others: int = 0) -> Engine:
    """An engine in which request 0 and others have run their prompts."""
    target, draft = models
    engine = tiny_engine(
        speculation(3),
        target=target,
        draft=draft,
        prefill_chunk=prefill_chunk,
        max_len=1024,
        num_pages=160,
        page_size=PAGE_SIZE,
    )
    for number in range(1 + others):
        own = prompt() if number == 0 else tuple(range(number, number + 90))
        request = Request(id=number, prompt=own, params=GREEDY, seed=0, priority=-number)
        engine.add(request, Ending(stop_ids=(), matcher=NoStops()))
    engine.prefill_all()
    return engine


def left_by(engine: Engine) -> dict[str, Tensor]:
    """All that prefill leaves of request 0: entries, features of pages' ends, what waits for the draft, the root."""
    worker, state = engine.executor, engine.running[0]
    assert isinstance(worker, Worker)
    assert worker.drafter is not None
    assert worker.entrance.page_features is not None
    slots = torch.tensor([page * PAGE_SIZE + place for page in state.pages for place in range(PAGE_SIZE)])
    own, drafts = slots[:NUM_PROMPT], slots[1:NUM_PROMPT]  # the draft's entry of a position stands one slot further
    pending = worker._residents[0].pending
    assert pending is not None
    return {
        "target keys": worker.pool.keys[:, own],
        "target values": worker.pool.values[:, own],
        "draft keys": worker.drafter.pool.keys[:, drafts],
        "draft values": worker.drafter.pool.values[:, drafts],
        "features of pages' ends": worker.entrance.page_features.features_PF[list(state.pages[:37])],
        "feature that waits": pending.features,
        "token that waits": pending.tokens,
        "place that waits": torch.tensor(pending.start),
    }


@pytest.mark.parametrize(("size", "others"), [*((size, 0) for size in SIZES), *((size, 2) for size in SIZES[6:])])
def test_chunks_of_any_size_leave_what_single_shot_prefill_leaves(
    models: tuple[Decoder, LoadedDraft], whole: dict[str, Tensor], size: int, others: int
) -> None:
    found = left_by(entered(models, prefill_chunk=size, others=others))
    assert [name for name in whole if not torch.equal(found[name], whole[name])] == []


def test_the_prompt_differs_from_page_to_page_and_what_is_compared_is_not_empty(whole: dict[str, Tensor]) -> None:
    pages = whole["target keys"][0].view(-1, *whole["target keys"].shape[2:])[:592].view(37, -1)
    assert len({tuple(page.tolist()) for page in pages}) == 37
    assert all(bool(found.any()) for found in whole.values())


@pytest.mark.parametrize("size", [3, 17, 255])
def test_what_follows_chunks_is_the_same_too(models: tuple[Decoder, LoadedDraft], size: int) -> None:
    cut, once = entered(models, prefill_chunk=size), entered(models, prefill_chunk=1024)
    while cut.busy:
        news = [engine.step()[0] for engine in (cut, once)]
        assert news[0].new_tokens == news[1].new_tokens
    assert not once.busy
