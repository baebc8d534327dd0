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
