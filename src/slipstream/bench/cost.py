"""What the parts of a cycle cost: verifying n rows, and one step of the draft, over a cache of a given length.

Shape letters: T rows, D hidden.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

from slipstream.attention.pool import KVPool, SlotRun, slot_run
from slipstream.attention.rows import attend_spans
from slipstream.config.model import ModelConfig
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.flow.span import PageSpan
from slipstream.models.decoder import Decoder
from slipstream.telemetry.clock import Clock, Stopwatch

PAGE_SIZE = 16


@torch.inference_mode()
def verify_seconds(
    target: Decoder, num_rows: Sequence[int], *, cached: int, repeats: int, clock: Clock
) -> dict[int, float]:
    """Median seconds of a target forward and its argmax over n rows, the n interleaved."""
    pool, run = _pool(target.config, cached + max(num_rows))

    def verify(count: int) -> None:
        hidden = target(torch.arange(count), attend_spans(pool, [run], [(cached, cached + count)]))
        target.logits(hidden.final_TD).argmax(-1)

    return _medians({count: lambda count=count: verify(count) for count in num_rows}, repeats=repeats, clock=clock)


@torch.inference_mode()
def draft_seconds(draft: Eagle3Draft, *, cached: int, repeats: int, clock: Clock) -> float:
    """Median seconds of one draft step for one request, its argmax included."""
    body = draft.config.body
    pool, run = _pool(body, cached + 2)
    token_1, hidden_1D = torch.zeros(1, dtype=torch.long), torch.zeros(1, body.hidden_size)

    def step() -> None:
        hidden = draft(token_1, hidden_1D, attend_spans(pool, [run], [(cached, cached + 1)], shift=1))
        draft.logits(hidden.normed_TD).argmax(-1)

    return _medians({1: step}, repeats=repeats, clock=clock)[1]


def _pool(config: ModelConfig, num_entries: int) -> tuple[KVPool, SlotRun]:
    """A pool that one request fills."""
    num_pages = num_entries // PAGE_SIZE + 1
    pool = KVPool(
        num_layers=config.num_layers,
        num_pages=num_pages + 1,
        page_size=PAGE_SIZE,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    span = PageSpan(pages=tuple(range(1, num_pages + 1)), page_size=PAGE_SIZE)
    return pool, slot_run(span, pool.device)


def _medians(work: Mapping[int, Callable[[], None]], *, repeats: int, clock: Clock) -> dict[int, float]:
    """Time every piece of work in turn, `repeats` times, after one turn to warm up."""
    seconds: dict[int, list[float]] = {key: [] for key in work}
    for turn in range(repeats + 1):
        for key, call in work.items():
            with Stopwatch(clock) as watch:
                call()
            if turn:
                seconds[key].append(watch.seconds)
    return {key: statistics.median(found) for key, found in seconds.items()}
