"""Which request holds which pages, and which pages hold a known prefix: plain integers, no tensors.

    scratch      page 0
    free         nobody's
    private      held by one request, which alone writes there
    published    full, written, read-only, found by its tokens: held by any number of requests and pins,
                 or idle: held by nobody, kept until its space is needed, the least recently held first

A holder of a page holds every page before it, and gives them back last page first. So a page becomes idle after the
pages that continue it, and the oldest idle page is always a leaf: evicting it orphans nothing.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from slipstream.cache.integrity import check_holders, check_idle, check_places
from slipstream.cache.pages import SCRATCH_PAGE, Pages
from slipstream.cache.prefix import Digest, PrefixIndex, Published, blake2


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a request may use: the pages in address order."""

    pages: tuple[int, ...]
    num_cached_entries: int  # the first entries, written already and read-only


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """What the cache spared since the engine started; failed wishes count nothing."""

    hits: int = 0  # grants with at least one cached page
    misses: int = 0  # grants without
    asked_tokens: int = 0  # of all grants
    hit_tokens: int = 0  # of those, cached
    published_pages: int = 0
    evicted_pages: int = 0


class PageTable:
    """Grants pages, keeps what was computed, and finds it again."""

    def __init__(
        self, pages: Pages, *, max_pinned_pages: int = 0, namespace: bytes = b"", digest: Digest = blake2
    ) -> None:
        """A table over pages nobody holds yet; the namespace names whatever else the entries depend on.

        Raises:
            ValueError: the pins could take every page.
        """
        if not 0 <= max_pinned_pages < pages.num_pages - 1:
            raise ValueError(
                f"max_pinned_pages is {max_pinned_pages} of {pages.num_pages - 1} pages;"
                " give 0 or more, and leave a page for requests"
            )
        self.pages, self.max_pinned_pages = pages, max_pinned_pages
        self.index = PrefixIndex(pages.page_size, namespace=namespace, digest=digest)
        self.statistics = CacheStatistics()
        self._num_holders = [0] * pages.num_pages  # requests, pins, and private copies of a published page
        self._idle: dict[int, None] = {}  # in order of eviction
        self._twins: dict[int, int] = {}  # private copy -> the page published for its chain, which it holds
        self._pins: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._num_pins: Counter[int] = Counter()

    @property
    def num_free(self) -> int:
        """Pages that a request can have: free ones, and idle ones after evicting them."""
        return self.pages.num_free + len(self._idle)

    @property
    def num_pinned(self) -> int:
        """Pages that are never evicted."""
        return len(self._num_pins)

    @property
    def pinned(self) -> tuple[tuple[int, ...], ...]:
        """The prompts that are pinned."""
        return tuple(self._pins)

    def match(self, tokens: Sequence[int], *, limit: int | None = None) -> tuple[int, ...]:
        """The published pages of the longest known prefix, none of them taken.

        At least one token is left to be run; `limit`: so many entries at most.
        """
        reusable = max(0, len(tokens) - 1)
        num_entries = reusable if limit is None else min(reusable, limit)
        return self.index.follow(tokens, num_entries // self.pages.page_size)

    def take(self, tokens: Sequence[int], num_entries: int, *, limit: int | None = None) -> Grant | None:
        """Pages for num_entries entries, the matched ones first, the others the request's own.

        None when too few can be had; then nothing has changed.
        """
        matched = self.match(tokens, limit=limit)
        num_fresh = max(0, self.pages.pages_for(num_entries) - len(matched))
        num_held = bisect_left(matched, 1, key=lambda page: page in self._idle)  # held pages come first in a chain
        if num_fresh > self.num_free - (len(matched) - num_held):
            return None
        for page in matched:
            self._hold(page)
        fresh = self._fresh(num_fresh, after=matched[-1] if matched else SCRATCH_PAGE)
        num_cached = len(matched) * self.pages.page_size
        self._count_grant(num_tokens=len(tokens), num_cached=num_cached)
        return Grant(pages=matched + fresh, num_cached_entries=num_cached)

    def grow(self, held: Sequence[int], num_entries: int) -> tuple[int, ...] | None:
        """The pages that a request needs beyond those it holds for num_entries entries; None when too few are left."""
        count = max(0, self.pages.pages_for(num_entries) - len(held))
        if count > self.num_free:
            return None
        return self._fresh(count, after=held[-1] if held else SCRATCH_PAGE)

    def publish(self, tokens: Sequence[int], pages: Sequence[int], num_ready_entries: int) -> int:
        """Publish a request's full pages among the entries that are written; how many are new.

        Call it after the write, with the request's own pages as it holds them; work already done costs nothing. A
        chain that is published already keeps its page, and the request its private copy, which holds that page.
        """
        assert num_ready_entries <= len(tokens), "an entry is ready but its token is not given"
        num_full = num_ready_entries // self.pages.page_size
        first, parent = self._last_known(tokens, pages, num_full)
        num_new = 0
        for place in range(first, num_full):
            page = pages[place]
            assert self._num_holders[page] == 1, f"page {page} is to be published but not held by one request alone"
            parent = self.index.put(page, parent=parent, chunk=self.index.chunk(tokens, place))
            if parent is None:  # another chain has this key: neither this page nor a later one can be found
                break
            if parent.page == page:
                num_new += 1
            else:
                self._twins[page] = parent.page
                self._hold(parent.page)
        if num_new:
            published = self.statistics.published_pages + num_new
            self.statistics = replace(self.statistics, published_pages=published)
        return num_new

    def release(self, pages: Sequence[int]) -> None:
        """Give back all of a request's pages, or its last ones: private ones are free, published ones idle."""
        freed: list[int] = []
        for page in reversed(pages):
            self._drop(page, freed)
        self.pages.give_back(freed)

    def pin(self, tokens: Sequence[int]) -> int:
        """Keep what is published of a prompt's full pages until unpin or clear; how many tokens that is.

        Pinned again, a prompt keeps what is published of it by now.

        Raises:
            ValueError: nothing of it is published, or the pins would exceed their budget.
        """
        prompt = tuple(tokens)
        pages = self.index.follow(prompt, len(prompt) // self.pages.page_size)
        if not pages:
            raise ValueError(
                f"no full page ({self.pages.page_size} tokens) of the prompt is cached; run it once, then pin it"
            )
        num_pinned = len(self._num_pins.keys() | set(pages))
        if num_pinned > self.max_pinned_pages:
            raise ValueError(
                f"{num_pinned} pages would be pinned but at most {self.max_pinned_pages} may be, of"
                f" {self.pages.page_size} tokens each; unpin another prompt or raise pinned_tokens"
            )
        before = self._pins.get(prompt, ())  # still published, so the first of pages
        self._pins[prompt] = pages
        for page in pages[len(before) :]:
            self._hold(page)
            self._num_pins[page] += 1
        return len(pages) * self.pages.page_size

    def unpin(self, tokens: Sequence[int]) -> None:
        """Let a pinned prompt be evicted again.

        Raises:
            ValueError: it is not pinned.
        """
        pages = self._pins.pop(tuple(tokens), None)
        if pages is None:
            raise ValueError("the prompt is not pinned; give the tokens that were pinned")
        self._num_pins.subtract(pages)
        self._num_pins = +self._num_pins
        self.release(pages)

    def clear(self) -> None:
        """Forget everything published, pins included; for entries that are no longer what a new request would write.

        Raises:
            ValueError: requests hold pages, and would publish old entries later.
        """
        pinned = self._num_pins
        num_private = self.pages.num_pages - 1 - self.pages.num_free - len(self.index)
        num_shared = sum(self._num_holders[entry.page] != pinned[entry.page] for entry in self.index)
        if num_private + num_shared:
            raise ValueError(f"requests hold {num_private + num_shared} pages; clear the cache when the engine is idle")
        self.pages.give_back([entry.page for entry in self.index])
        self.index.clear()
        self._idle.clear()
        self._pins.clear()
        self._num_pins.clear()
        self._num_holders = [0] * self.pages.num_pages

    def check(self, held: Iterable[Sequence[int]] | None = None) -> None:
        """Assert that every page is in one place; `held`, all requests' pages, is checked against the counts."""
        self.index.check()
        check_places(set(self.pages.free_pages()), self._num_holders, self.index)
        check_idle(self._idle, self._num_holders, self.index)
        pins = self._pins.values()
        check_holders(self._num_holders, self.index, twins=self._twins, pins=pins, held=held)
        assert +self._num_pins == Counter(page for pages in pins for page in pages), "pins are miscounted"

    def _last_known(self, tokens: Sequence[int], pages: Sequence[int], num_full: int) -> tuple[int, Published | None]:
        """How many of a request's first pages are published or copies, and the last of those."""
        for place in range(num_full - 1, -1, -1):
            page = self._twins.get(pages[place], pages[place])
            entry = self.index.get(page)
            if entry is not None:
                same = entry.tokens == self.index.chunk(tokens, place)
                assert same, f"page {page} was published with other tokens than its holder has now"
                return place + 1, entry
        return 0, None

    def _fresh(self, count: int, *, after: int) -> tuple[int, ...]:
        """Pages for one writer, evicting as many as are short."""
        if count > self.pages.num_free:
            self._evict(count - self.pages.num_free)
        fresh = self.pages.grant_pages(count, after=after)
        assert fresh is not None, f"{count} pages were promised but are not there"
        for page in fresh:
            self._num_holders[page] = 1
        return fresh

    def _evict(self, count: int) -> None:
        """Free the pages that became idle first."""
        evicted = tuple(islice(self._idle, count))
        for page in evicted:
            del self._idle[page]
            self.index.remove(page)
        self.pages.give_back(evicted)
        self.statistics = replace(self.statistics, evicted_pages=self.statistics.evicted_pages + len(evicted))

    def _hold(self, page: int) -> None:
        self._num_holders[page] += 1
        self._idle.pop(page, None)

    def _drop(self, page: int, freed: list[int]) -> None:
        """One holder less; a page that becomes free is added to `freed`."""
        assert self._num_holders[page] > 0, f"page {page} was given back twice"
        self._num_holders[page] -= 1
        if self._num_holders[page]:
            return
        if page in self.index:
            self._idle[page] = None
            return
        freed.append(page)
        twin = self._twins.pop(page, None)
        if twin is not None:
            self._drop(twin, freed)

    def _count_grant(self, *, num_tokens: int, num_cached: int) -> None:
        before = self.statistics
        self.statistics = replace(
            before,
            hits=before.hits + (num_cached > 0),
            misses=before.misses + (num_cached == 0),
            asked_tokens=before.asked_tokens + num_tokens,
            hit_tokens=before.hit_tokens + num_cached,
        )
