"""Pages are granted once, given back once, and lone requests get contiguous spans."""

import random

import pytest

from slipstream.cache.pages import SCRATCH_PAGE, Pages
from slipstream.flow.span import PageSpan


def test_spans_never_overlap_and_nothing_leaks() -> None:
    rng, pages = random.Random(0), Pages(64, 16)
    held: list[tuple[int, ...]] = []
    for _ in range(2000):
        if held and rng.random() < 0.5:
            pages.give_back(held.pop(rng.randrange(len(held))))
        else:
            granted = pages.grant(rng.randrange(1, 200))
            if granted is not None:
                held.append(granted)
        used = [page for span in held for page in span]
        assert len(used) == len(set(used))
        assert SCRATCH_PAGE not in used
        assert pages.num_free == 63 - len(used)


def test_too_large_a_wish_takes_nothing() -> None:
    pages = Pages(5, 16)
    assert pages.grant(65) is None
    assert pages.num_free == 4
    assert pages.grant(64) == (1, 2, 3, 4)


def test_a_run_of_free_pages_is_preferred_to_scattered_ones() -> None:
    pages = Pages(9, 1)
    first, _second = pages.grant(2), pages.grant(1)
    assert first is not None
    pages.give_back(first)
    assert pages.grant(4) == (4, 5, 6, 7)
    scattered = pages.grant(3)
    assert scattered == (1, 2, 8)
    assert not PageSpan(pages=scattered, page_size=1).contiguous


def test_pages_given_back_twice_are_a_bug() -> None:
    pages = Pages(4, 1)
    granted = pages.grant(2)
    assert granted is not None
    pages.give_back(granted)
    with pytest.raises(AssertionError):
        pages.give_back(granted)


def test_pages_that_follow_the_last_one_are_preferred() -> None:
    pages = Pages(12, 1)
    low, _middle = pages.grant(3), pages.grant(2)
    assert low is not None
    pages.give_back(low)
    assert pages.grant_pages(2, after=5) == (6, 7)
    assert pages.grant_pages(4, after=7) == (8, 9, 10, 11)
    assert pages.grant_pages(2, after=11) == (1, 2)
    assert list(pages.free_pages()) == [3]


def test_runs_of_any_length_are_found_where_a_search_finds_them() -> None:
    rng = random.Random(1)
    for _ in range(300):
        pages = Pages(40, 1)
        taken = pages.grant(39)
        assert taken is not None
        free = sorted(rng.sample(taken, rng.randrange(1, 39)))
        pages.give_back(free)
        count = rng.randrange(1, len(free) + 1)
        runs = [
            free[at : at + count] for at in range(len(free) - count + 1) if free[at + count - 1] == free[at] + count - 1
        ]
        assert pages.grant_pages(count) == tuple(runs[0] if runs else free[:count])


def test_the_scratch_page_is_nobodys_to_give_back() -> None:
    with pytest.raises(AssertionError, match="scratch"):
        Pages(4, 1).give_back((SCRATCH_PAGE,))
