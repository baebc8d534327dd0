"""Rows of many requests at once: the bits that each request's rows have alone, in any batch and any order."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from slipstream.attention.interface import AttentionShape, Normalise
from slipstream.attention.packed import PackedRows
from slipstream.attention.paged import PACKED_ROWS, packable
from slipstream.attention.pool import KVPool, SlotRun
from slipstream.attention.rows import attend_spans
from slipstream.attention.sequence import SequenceRows, key_mask
from slipstream.kernels.reference import attend_shared
from slipstream.layers.linear import pack_linears
from tests.tiny_engine import TINY, tiny_target

CPU = torch.device("cpu")
NUM_SLOTS = 40 * 1024
LENGTHS = [5, 700, 130, 127, 90, 128, 60, 255, 1, 300, 500, 120, 2, 77, 257, 520]


@dataclass
class Shape:
    """An attention layer's numbers."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    index: int = 0
    query_norm: Normalise | None = None
    key_norm: Normalise | None = None


SHAPES = [Shape(9, 3, 64), Shape(8, 8, 32), Shape(4, 2, 16), Shape(16, 2, 128), Shape(9, 3, 64, window=40)]


def pool_for(shape: Shape, *, num_layers: int = 1) -> KVPool:
    pool = KVPool(
        num_layers=num_layers,
        num_pages=NUM_SLOTS // 16,
        page_size=16,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=torch.float32,
        device=CPU,
    )
    torch.manual_seed(0)
    pool.keys.normal_()
    pool.values.normal_()
    return pool


def some_runs(num_entries: int, *, scattered: Sequence[int]) -> list[SlotRun]:
    """A run a request, each of num_entries entries; some of them scattered over the pool."""
    spare = torch.randperm(NUM_SLOTS // 2, generator=torch.Generator().manual_seed(1)) + NUM_SLOTS // 2
    runs = []
    for index in range(len(LENGTHS)):
        base = 16 + index * num_entries
        contiguous = SlotRun(slots=torch.arange(base, base + num_entries), base=base)
        apart = SlotRun(slots=spare[index * num_entries : (index + 1) * num_entries], base=None)
        runs.append(apart if index in scattered else contiguous)
    return runs


def rows_of(lengths: Sequence[int], counts: Sequence[int], runs: Sequence[SlotRun], first: int) -> list[SequenceRows]:
    """The last rows of each request."""
    found, start = [], 0
    for length, count, run in zip(lengths, counts, runs, strict=True):
        addresses = torch.arange(length, length + count)
        last = length + count - 1
        found.append(
            SequenceRows(start=start, stop=start + count, run=run, addresses=addresses, last=last, first=first)
        )
        start += count
    return found


def alone(pool: KVPool, shape: AttentionShape, rows: SequenceRows, q_RHK: Tensor) -> Tensor:
    return attend_shared(q_RHK, *pool.read(0, rows.run, rows.num_keys), key_mask(rows, shape.window))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packed_rows_have_the_bits_of_each_request_alone(shape: Shape, first: int) -> None:
    pool, runs = pool_for(shape), some_runs(1024, scattered=(2, 5, 9))
    draw = random.Random(0)
    for num_requests in (1, 2, 3, 7, 16):
        chosen = draw.sample(range(16), num_requests)
        counts = [draw.randint(1, 8) for _ in chosen] if num_requests % 2 else [draw.randint(1, 5)] * num_requests
        rows = rows_of([LENGTHS[index] for index in chosen], counts, [runs[index] for index in chosen], first)
        q_THK = torch.randn(rows[-1].stop, shape.num_heads, shape.head_dim)
        together = PackedRows(rows, shape)(pool, 0, q_THK)
        for each in rows:
            expected = alone(pool, shape, each, q_THK[each.start : each.stop])
            assert torch.equal(together[each.start : each.stop], expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_row_has_the_same_bits_among_1_to_16_requests_in_any_order(shape: Shape) -> None:
    pool, runs = pool_for(shape), some_runs(1024, scattered=(3,))
    torch.manual_seed(3)
    q_SHK = torch.randn(16, shape.num_heads, shape.head_dim)
    every = rows_of(LENGTHS, [1] * 16, runs, 0)
    expected = [alone(pool, shape, each, q_SHK[each.start : each.stop]) for each in every]
    draw = random.Random(1)
    for num_requests in range(1, 17):
        chosen = draw.sample(range(16), num_requests)
        rows = rows_of([LENGTHS[index] for index in chosen], [1] * num_requests, [runs[index] for index in chosen], 0)
        together = PackedRows(rows, shape)(pool, 0, q_SHK[chosen])
        assert torch.equal(together, torch.cat([expected[index] for index in chosen]))


@pytest.mark.parametrize("num_rows", [1, 3, 5])
def test_a_models_logits_have_the_same_bits_in_any_batch(num_rows: int) -> None:
    target = tiny_target(replace(TINY, max_position=1024))
    pack_linears(target)
    pool = pool_for(Shape(TINY.num_heads, TINY.num_kv_heads, TINY.head_dim), num_layers=TINY.num_layers)
    runs, tokens = some_runs(1024, scattered=(4,)), torch.randint(0, TINY.vocab_size, (16, num_rows))
    spans = [(length, length + num_rows) for length in LENGTHS]

    def logits(chosen: Sequence[int]) -> Tensor:
        attend = attend_spans(pool, [runs[index] for index in chosen], [spans[index] for index in chosen])
        return target.logits(target(tokens[chosen].flatten(), attend).final_TD)

    with torch.inference_mode():
        expected = torch.stack([logits([index]) for index in range(16)])
        for num_requests in (2, 5, 16):
            chosen = random.Random(num_requests).sample(range(16), num_requests)
            assert torch.equal(logits(chosen), expected[chosen].flatten(0, 1))


def test_only_short_runs_on_chains_are_packed() -> None:
    run = SlotRun(slots=torch.arange(100), base=0)
    q_THK = torch.zeros(PACKED_ROWS + 1, 4, 16)
    short, long = (rows_of([3], [count], [run], 0) for count in (PACKED_ROWS, PACKED_ROWS + 1))
    assert packable(short, q_THK)
    assert not packable(long, q_THK)
    assert not packable(short, q_THK.bfloat16())
