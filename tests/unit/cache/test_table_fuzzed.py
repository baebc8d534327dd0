"""Random requests over few tokens, so that prefixes meet all the time, against a model that only knows tuples."""

import zlib
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipstream.cache.pages import SCRATCH_PAGE, Pages
from slipstream.cache.prefix import blake2
from slipstream.cache.table import PageTable

PAGE_SIZE, NUM_PAGES, MAX_PINNED = 2, 14, 4
STORIES = ("00000000000", "00000011001", "00010101111", "11000000110", "11001110000")
TOKENS = st.sampled_from([tuple(map(int, story[:end])) for story in STORIES for end in range(1, 12)])
FEW_TOKENS = st.sampled_from([(0,), (1,), (0, 0), (1, 0), (0, 0, 0, 0), (0, 1, 1, 0)])
COUNTS = st.sampled_from([1, 2, 3, 5, 12, 12, 12])
LIMITS = st.sampled_from([None, None, None, None, 0, 3, 4])
PICK = st.sampled_from(range(12))
SETTINGS = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)

Prefix = tuple[int, ...]


@dataclass(eq=False)
class Holder:
    """A request as its engine sees it."""

    tokens: Prefix
    pages: list[int]
    num_cached: int
    num_written: int
    covered: list[Prefix] = field(default_factory=list)  # published prefixes it reads, or wrote, or has a copy of


class SharedPages(RuleBasedStateMachine):
    """Whatever the keys are: nothing leaks, nobody writes what another reads, and a hit holds the tokens asked for."""

    digest = staticmethod(blake2)

    def __init__(self) -> None:
        super().__init__()
        self.table = PageTable(Pages(NUM_PAGES, PAGE_SIZE), max_pinned_pages=MAX_PINNED, digest=self.digest)
        self.holders: list[Holder] = []
        self.pins: list[Prefix] = []
        self.memory: dict[tuple[int, int], Prefix] = {}  # what an entry depends on: all tokens up to it

    @rule(tokens=TOKENS, more=st.sampled_from(range(5)), limit=LIMITS)
    def take(self, tokens: Prefix, more: int, limit: int | None) -> None:
        expected = self.table.match(tokens, limit=limit)
        before = self.picture()
        grant = self.table.take(tokens, len(tokens) + more, limit=limit)
        self.took(tokens, expected, None if grant is None else grant.pages, num_entries=len(tokens) + more)
        if grant is None:
            assert self.picture() == before
            return
        num_cached = grant.num_cached_entries
        assert grant.pages[: num_cached // PAGE_SIZE] == expected
        assert num_cached < len(tokens)
        assert len(grant.pages) == -(-(len(tokens) + more) // PAGE_SIZE)
        for address in range(num_cached):
            assert self.memory[grant.pages[address // PAGE_SIZE], address % PAGE_SIZE] == tokens[: address + 1]
        holder = Holder(tokens=tokens, pages=list(grant.pages), num_cached=num_cached, num_written=num_cached)
        self.holders.append(holder)
        self.began(holder)

    @rule(tokens=TOKENS)
    def leave_a_prompt_behind(self, tokens: Prefix) -> None:
        num_holders = len(self.holders)
        self.take(tokens, more=0, limit=None)
        if len(self.holders) > num_holders:
            self.write(num_holders, count=len(tokens))
            self.publish(num_holders)
            self.release(num_holders)

    @precondition(lambda self: self.holders)
    @rule(pick=PICK, count=COUNTS)
    def write(self, pick: int, count: int) -> None:
        holder = self.holders[pick % len(self.holders)]
        end = min(holder.num_written + count, len(holder.tokens), len(holder.pages) * PAGE_SIZE)
        for address in range(holder.num_written, end):
            page = holder.pages[address // PAGE_SIZE]
            assert page not in self.table.index
            assert not any(page in other.pages for other in self.holders if other is not holder)
            self.memory[page, address % PAGE_SIZE] = holder.tokens[: address + 1]
        holder.num_written = max(end, holder.num_written)

    @precondition(lambda self: self.holders)
    @rule(pick=PICK)
    def publish(self, pick: int) -> None:
        holder = self.holders[pick % len(self.holders)]
        num_new = self.table.publish(holder.tokens, holder.pages, holder.num_written)
        self.published(holder, num_new)

    @precondition(lambda self: self.holders)
    @rule(pick=PICK, new=FEW_TOKENS)
    def grow(self, pick: int, new: Prefix) -> None:
        holder = self.holders[pick % len(self.holders)]
        before = self.picture()
        tokens = (*holder.tokens, *new)
        count = max(0, -(-len(tokens) // PAGE_SIZE) - len(holder.pages))
        granted = self.table.grow(holder.pages, len(tokens))
        self.grew(count, granted)
        if granted is None:
            assert self.picture() == before
            return
        assert len(granted) == count
        holder.tokens = tokens
        holder.pages += granted

    @precondition(lambda self: self.holders)
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        holder = self.holders.pop(pick % len(self.holders))
        self.table.release(holder.pages)
        self.ended(holder)

    @rule(tokens=TOKENS)
    def pin(self, tokens: Prefix) -> None:
        before, num_tokens = self.picture(), None
        with suppress(ValueError):
            num_tokens = self.table.pin(tokens)
        assert num_tokens is not None or self.picture() == before
        if num_tokens is not None and tokens not in self.pins:
            self.pins.append(tokens)
        self.pinned(tokens, num_tokens)

    @precondition(lambda self: self.table.num_pinned)
    @rule(pick=PICK)
    def unpin(self, pick: int) -> None:
        tokens = self.pins[pick % len(self.pins)]
        self.pins.remove(tokens)
        self.table.unpin(tokens)
        self.unpinned(tokens)

    @precondition(lambda self: self.holders)
    @rule()
    def refuse_to_clear(self) -> None:
        before = self.picture()
        with pytest.raises(ValueError, match="clear the cache when the engine is idle"):
            self.table.clear()
        assert self.picture() == before

    @precondition(lambda self: not self.holders and len(self.table.index) > NUM_PAGES // 2)
    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.pins.clear()
        assert self.table.num_free == NUM_PAGES - 1
        self.cleared()

    @invariant()
    def every_page_is_in_one_place(self) -> None:
        self.table.check(held=[holder.pages for holder in self.holders])

    @invariant()
    def published_pages_hold_the_tokens_that_lead_to_them(self) -> None:
        for prefix, page in self.contents().items():
            for place in range(PAGE_SIZE):
                assert self.memory[page, place] == prefix[: len(prefix) - PAGE_SIZE + place + 1]

    def contents(self) -> dict[Prefix, int]:
        """The published pages by the whole prefix that leads to them."""
        found = {}
        for entry in self.table.index:
            prefix, ancestor = entry.tokens, entry.parent
            while ancestor is not None:
                prefix, ancestor = ancestor.tokens + prefix, ancestor.parent
            assert prefix not in found, "a chain was published twice"
            found[prefix] = entry.page
        return found

    def picture(self) -> object:
        """All that a failed wish leaves as it was."""
        return self.contents(), self.table.num_free, sorted(self.table.pages.free_pages()), self.table.statistics

    # What the exact model below adds.
    def took(self, tokens: Prefix, matched: Prefix, pages: Prefix | None, *, num_entries: int) -> None: ...
    def began(self, holder: Holder) -> None: ...
    def published(self, holder: Holder, num_new: int) -> None: ...
    def grew(self, count: int, granted: Prefix | None) -> None: ...
    def ended(self, holder: Holder) -> None: ...
    def pinned(self, tokens: Prefix, num_tokens: int | None) -> None: ...
    def unpinned(self, tokens: Prefix) -> None: ...
    def cleared(self) -> None: ...


class CollidingKeys(SharedPages):
    """Six keys for all chains: most publications meet another chain's key."""

    digest = staticmethod(lambda data: bytes([zlib.crc32(data) % 6]))


class ExactModel(SharedPages):
    """What is published, what is found, and what is evicted are exactly what a dictionary of tuples says."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[Prefix, int] = {}  # published prefix -> when it was last held
        self.pinned_prefixes: dict[Prefix, list[Prefix]] = {}
        self.now = 0

    def known_prefixes(self, tokens: Prefix, num_entries: int) -> list[Prefix]:
        found: list[Prefix] = []
        for end in range(PAGE_SIZE, num_entries + 1, PAGE_SIZE):
            if tokens[:end] not in self.known:
                break
            found.append(tokens[:end])
        return found

    def held(self) -> set[Prefix]:
        by_requests = {prefix for holder in self.holders for prefix in holder.covered}
        return by_requests | {prefix for prefixes in self.pinned_prefixes.values() for prefix in prefixes}

    def num_private(self) -> int:
        return len({page for holder in self.holders for page in holder.pages} - set(self.contents().values()))

    def evict(self, num_wanted: int, *, keep: list[Prefix], num_private: int) -> bool:
        """Make room for so many new pages; whether it can be had."""
        idle = [prefix for prefix in self.known if prefix not in self.held() and prefix not in keep]
        num_short = num_wanted - (NUM_PAGES - 1 - num_private - len(self.known))
        if num_short > len(idle):
            return False
        idle.sort(key=lambda prefix: (self.known[prefix], -len(prefix)))
        for prefix in idle[: max(0, num_short)]:
            del self.known[prefix]
        return True

    def took(self, tokens: Prefix, matched: Prefix, pages: Prefix | None, *, num_entries: int) -> None:
        found = self.known_prefixes(tokens, len(matched) * PAGE_SIZE)
        assert len(found) == len(matched)
        num_fresh = -(-num_entries // PAGE_SIZE) - len(matched)
        fits = self.evict(num_fresh, keep=found, num_private=self.num_private())
        assert fits == (pages is not None)

    def began(self, holder: Holder) -> None:
        holder.covered = self.known_prefixes(holder.tokens, holder.num_cached)

    def published(self, holder: Holder, num_new: int) -> None:
        prefixes = [holder.tokens[:end] for end in range(PAGE_SIZE, holder.num_written + 1, PAGE_SIZE)]
        assert num_new == sum(prefix not in self.known for prefix in prefixes)
        self.known |= {prefix: 0 for prefix in prefixes if prefix not in self.known}
        holder.covered = prefixes

    def grew(self, count: int, granted: Prefix | None) -> None:
        assert self.evict(count, keep=[], num_private=self.num_private()) == (granted is not None)

    def let_go(self, prefixes: list[Prefix]) -> None:
        self.now += 1
        held = self.held()
        self.known |= {prefix: self.now for prefix in prefixes if prefix not in held}

    def ended(self, holder: Holder) -> None:
        self.let_go(holder.covered)

    def pinned(self, tokens: Prefix, num_tokens: int | None) -> None:
        found = self.known_prefixes(tokens, len(tokens))
        pinned = {prefix for prefixes in self.pinned_prefixes.values() for prefix in prefixes}
        if not found or len(pinned | set(found)) > MAX_PINNED:
            assert num_tokens is None
            return
        assert num_tokens == len(found[-1])
        self.pinned_prefixes[tokens] = found

    def unpinned(self, tokens: Prefix) -> None:
        self.let_go(self.pinned_prefixes.pop(tokens))

    def cleared(self) -> None:
        self.known.clear()
        self.pinned_prefixes.clear()

    @rule(tokens=TOKENS, limit=LIMITS)
    def match(self, tokens: Prefix, limit: int | None) -> None:
        num_entries = len(tokens) - 1 if limit is None else min(len(tokens) - 1, limit)
        contents = self.contents()
        expected = tuple(contents[prefix] for prefix in self.known_prefixes(tokens, num_entries))
        assert self.table.match(tokens, limit=limit) == expected
        assert self.table.match(list(tokens), limit=limit) == expected

    @invariant()
    def exactly_the_known_prefixes_are_published(self) -> None:
        assert self.contents().keys() == self.known.keys()
        assert self.table.num_free == NUM_PAGES - 1 - self.num_private() - len(self.held())
        assert SCRATCH_PAGE not in self.contents().values()


TestExactModel = ExactModel.TestCase
TestExactModel.settings = SETTINGS
TestCollidingKeys = CollidingKeys.TestCase
TestCollidingKeys.settings = SETTINGS
