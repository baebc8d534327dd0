"""Every width is shared out whole, in order, without gaps; heads are never split."""

import itertools
from itertools import pairwise

import pytest

from slipstream.parallel.cut import BLOCK, check_heads, kv_heads, query_heads, span_of, valid_sizes

SIZES = range(1, 9)


def test_spans_cover_a_width_in_rank_order_and_none_is_empty() -> None:
    for total, size in itertools.product([*range(8, 300), 4864, 18944, 49152, 128256, 151936, 163840], SIZES):
        spans = [span_of(total, rank, size) for rank in range(size)]
        assert spans[0].start == 0
        assert spans[-1].stop == total
        assert all(before.stop == after.start for before, after in pairwise(spans))
        assert all(len(span) > 0 for span in spans), (total, size)


def test_an_uneven_cut_falls_between_blocks_and_is_balanced_within_one() -> None:
    for total, size in ((4864, 6), (151_937, 8), (18_945, 4), (121, 2)):
        spans = [span_of(total, rank, size) for rank in range(size)]
        assert all(span.start % BLOCK == 0 for span in spans)
        assert max(map(len, spans)) - min(map(len, spans)) <= 2 * BLOCK


def test_with_fewer_kv_heads_than_ranks_neighbours_hold_the_same_one() -> None:
    assert [tuple(range(*_ends(kv_heads(2, rank, 8)))) for rank in range(8)] == [(0,)] * 4 + [(1,)] * 4
    assert [tuple(range(*_ends(kv_heads(8, rank, 2)))) for rank in range(2)] == [(0, 1, 2, 3), (4, 5, 6, 7)]


@pytest.mark.parametrize(("heads", "kv"), [(4, 2), (32, 8), (9, 3), (64, 8), (12, 12), (8, 1)])
def test_a_ranks_query_heads_read_its_own_kv_heads(heads: int, kv: int) -> None:
    """Query head h reads KV head h * kv // heads of the whole layer; its rank must hold that one."""
    for size in valid_sizes(heads, kv):
        for rank in range(size):
            query, own = query_heads(heads, rank, size), kv_heads(kv, rank, size)
            wanted = [head * kv // heads for head in range(*_ends(query))]
            local = [own.start + place * len(own) // len(query) for place in range(len(query))]
            assert local == wanted


def test_sizes_that_would_split_a_head_are_refused_with_those_that_do_not() -> None:
    assert valid_sizes(9, 3) == (1, 3, 9)
    assert valid_sizes(4, 2) == (1, 2, 4)
    assert valid_sizes(12, 8) == (1, 2, 4)
    with pytest.raises(ValueError, match=r"the target has 4 heads and 2 KV heads, .* over 3 ranks; use 1, 2, 4$"):
        check_heads("the target", num_heads=4, num_kv_heads=2, size=3)


def _ends(span: object) -> tuple[int, int]:
    return span.start, span.stop  # type: ignore[attr-defined]
