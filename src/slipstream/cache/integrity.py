"""Every page is in exactly one place, and whoever points at a page holds it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from slipstream.cache.pages import SCRATCH_PAGE
from slipstream.cache.prefix import PrefixIndex


def check_places(free: set[int], num_holders: Sequence[int], index: PrefixIndex) -> None:
    """Assert that a page is scratch, free, private to one holder, or published."""
    assert num_holders[SCRATCH_PAGE] == 0, "the scratch page is held"
    published = {entry.page for entry in index}
    refuse(free & published, "free and published")
    refuse({SCRATCH_PAGE} & (free | published), "scratch, and free or published")
    refuse((page for page in free if num_holders[page]), "free and held")
    private = set(range(SCRATCH_PAGE + 1, len(num_holders))) - free - published
    refuse((page for page in private if num_holders[page] != 1), "neither free nor published, and not held once")


def check_idle(idle: Iterable[int], num_holders: Sequence[int], index: PrefixIndex) -> None:
    """Assert that idle pages are the published ones nobody holds, each after the pages that continue it."""
    order = {page: place for place, page in enumerate(idle)}
    unheld = {entry.page for entry in index if not num_holders[entry.page]}
    refuse(order.keys() ^ unheld, "evictable but held or not published, or published but neither held nor evictable")
    for entry in index:
        page, parent = entry.page, entry.parent
        if parent is None or parent.page not in order:
            continue
        assert page in order, f"page {page} is held but page {parent.page} before it is not"
        assert order[page] < order[parent.page], f"page {parent.page} would be evicted before page {page} after it"


def check_holders(
    num_holders: Sequence[int],
    index: PrefixIndex,
    *,
    twins: Mapping[int, int],
    pins: Iterable[Sequence[int]],
    held: Iterable[Sequence[int]] | None,
) -> None:
    """Assert that a page has as many holders as point at it; `held` None: at least the pins and twins."""
    for copy, page in twins.items():
        assert copy not in index, f"page {copy} is a copy of page {page} and published itself"
        assert num_holders[copy] == 1, f"page {copy} is a copy of page {page} but held {num_holders[copy]} times"
        assert page in index, f"page {page} is copied by page {copy} but not published"
    expected = Counter(twins.values())
    for pages in (*pins, *(held or ())):
        expected.update(pages)
    for page, holders in enumerate(num_holders):
        fits = holders == expected.get(page, 0) if held is not None else holders >= expected.get(page, 0)
        assert fits, f"page {page} counts {holders} holders but {expected[page]} point at it"


def refuse(pages: Iterable[int], what: str) -> None:
    """Assert that there are no such pages."""
    worst = min(pages, default=None)
    assert worst is None, f"page {worst} is {what}"
