"""Pages are found again by their tokens, shared while they are read, and evicted leaf first when space is short."""

import hashlib

import pytest

from slipstream.cache.pages import Pages
from slipstream.cache.prefix import blake2
from slipstream.cache.table import Grant, PageTable

PAGE_SIZE = 4


def a_table(num_pages: int = 16, **options) -> PageTable:
    return PageTable(Pages(num_pages, PAGE_SIZE), **options)


def run(table: PageTable, tokens: tuple[int, ...]) -> Grant:
    """Take pages for all tokens, write and publish them."""
    grant = table.take(tokens, len(tokens))
    assert grant is not None
    table.publish(tokens, grant.pages, len(tokens))
    return grant


def keep(table: PageTable, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Publish a prompt and leave it idle."""
    grant = run(table, tokens)
    table.release(grant.pages)
    table.check(held=())
    return grant.pages


def test_a_prompt_seen_before_is_reused_up_to_its_last_token() -> None:
    table = a_table()
    first = keep(table, tuple(range(12)))
    again = table.take(tuple(range(12)), 20)
    assert again is not None
    assert again.num_cached_entries == 8  # one token at least is left to be run
    assert again.pages[:2] == first[:2]
    longer = table.take((*range(12), 99), 13)
    assert longer is not None
    assert longer.num_cached_entries == 12
    table.check(held=(again.pages, longer.pages))
    statistics = table.statistics
    assert (statistics.hits, statistics.misses, statistics.hit_tokens, statistics.asked_tokens) == (2, 1, 20, 37)
    assert statistics.published_pages == 3


def test_only_pages_whose_every_entry_is_written_are_published() -> None:
    table, tokens = a_table(), tuple(range(9))
    grant = table.take(tokens, 9)
    assert grant is not None
    assert table.publish(tokens, grant.pages, 3) == 0
    assert table.match(tokens) == ()
    assert table.publish(tokens, grant.pages, 7) == 1
    assert table.match(tokens) == grant.pages[:1]
    assert table.publish(tokens, grant.pages, 8) == 1
    assert table.publish(tokens, grant.pages, 9) == 0
    assert table.match(tokens) == grant.pages[:2]


def test_a_limit_keeps_hits_on_a_grid() -> None:
    table, tokens = a_table(), tuple(range(13))
    pages = keep(table, tokens)
    assert table.match(tokens, limit=11) == pages[:2]
    grant = table.take(tokens, 13, limit=0)
    assert grant is not None
    assert grant.num_cached_entries == 0
    assert not set(grant.pages) & set(pages[:3])


def test_a_shared_page_lives_as_long_as_its_last_reader() -> None:
    table, tokens = a_table(num_pages=8), tuple(range(9))
    first = run(table, tokens)
    second = table.take(tokens, 9)
    assert second is not None
    table.release(first.pages)
    assert table.take((), 5 * PAGE_SIZE) is None  # 7 pages, of which the second reader holds 3
    table.check(held=(second.pages,))
    table.release(second.pages)
    table.check(held=())
    assert table.num_free == 7


def test_space_is_taken_from_the_least_recently_held_leaf_first() -> None:
    table = a_table(num_pages=7)
    old, new = (0,) * 12, (1,) * 12
    keep(table, old)
    keep(table, new)
    assert table.pages.num_free == 0
    other = table.take((2, 2), 2 * PAGE_SIZE)
    assert other is not None
    assert len(table.match((*old, 9))) == 1
    assert len(table.match((*new, 9))) == 3
    table.check(held=(other.pages,))
    table.release(other.pages)
    touched = table.take((0,) * 5, 5)  # the old prompt's first page is the most recent now
    assert touched is not None
    table.release(touched.pages)
    assert table.take((2, 2), 5 * PAGE_SIZE) is not None
    assert len(table.match((*old, 9))) == 1
    assert len(table.match((*new, 9))) == 0
    assert table.statistics.evicted_pages == 5


def test_pages_just_matched_are_not_evicted_for_the_rest_of_the_request() -> None:
    table = a_table(num_pages=6)
    pages = keep(table, tuple(range(13)))[:3]
    grant = table.take(tuple(range(13)), 5 * PAGE_SIZE)
    assert grant is not None
    assert grant.pages[:3] == pages
    assert table.num_free == 0


def test_a_wish_too_large_changes_nothing() -> None:
    table = a_table(num_pages=6)
    keep(table, tuple(range(13)))
    before = table.statistics
    assert table.take(tuple(range(13)), 6 * PAGE_SIZE) is None
    assert table.grow((), 6 * PAGE_SIZE) is None
    assert table.statistics == before
    assert table.num_free == 5
    table.check(held=())


def test_growing_gives_only_what_is_missing() -> None:
    table = a_table(num_pages=6)
    grant = table.take((1, 2, 3), 4)
    assert grant is not None
    assert table.grow(grant.pages, 4) == ()
    assert table.grow(grant.pages, 9) == (grant.pages[0] + 1, grant.pages[0] + 2)


def test_a_lone_conversation_stays_contiguous() -> None:
    table = a_table()
    turn: tuple[int, ...] = ()
    for length in (10, 21, 30, 47):
        turn = (*turn, *range(len(turn), length))
        grant = run(table, turn)
        assert grant.pages == tuple(range(1, len(grant.pages) + 1))
        table.release(grant.pages)


def test_two_that_wrote_the_same_keep_their_own_pages_and_one_is_found() -> None:
    table, tokens = a_table(), tuple(range(9))
    first, second = table.take(tokens, 9), table.take(tokens, 13)
    assert first is not None
    assert second is not None
    assert not set(first.pages) & set(second.pages)
    assert table.publish(tokens, first.pages, 9) == 2
    assert table.publish(tokens, second.pages, 9) == 0
    assert table.match(tokens) == first.pages[:2]
    table.release(first.pages)
    table.check(held=(second.pages,))
    longer = (*tokens, 9, 10, 11, 12)  # the copy's holder goes on: its next page continues the published chain
    assert table.publish(longer, second.pages, 12) == 1
    assert table.match(longer) == (*first.pages[:2], second.pages[2])
    assert table.take((), 12 * PAGE_SIZE) is None  # 15 pages; 2 copied, 4 held
    table.check(held=(second.pages,))
    table.release(second.pages)
    table.check(held=())
    assert table.num_free == 15


def test_pinned_prompts_are_never_evicted() -> None:
    table, system = a_table(num_pages=6, max_pinned_pages=2), tuple(range(8))
    with pytest.raises(ValueError, match="run it once, then pin it"):
        table.pin(system)
    keep(table, (*system, 8, 9, 10, 11))
    assert table.pin(system) == 8
    assert table.num_free == 3
    assert table.take((), 4 * PAGE_SIZE) is None
    grant = table.take((), 3 * PAGE_SIZE)
    assert grant is not None
    assert len(table.match((*system, 8, 9, 10, 11, 12))) == 2
    table.release(grant.pages)
    table.unpin(system)
    table.check(held=())
    assert table.num_free == 5
    with pytest.raises(ValueError, match="not pinned"):
        table.unpin(system)


def test_pins_keep_to_their_budget_and_share_their_beginning() -> None:
    table = a_table(max_pinned_pages=3)
    one, other, third = (*range(4), 1, 1, 1, 1), (*range(4), 2, 2, 2, 2), (7, 7, 7, 7)
    for prompt in (one, other, third):
        keep(table, prompt)
    assert table.pin(one) == table.pin(other) == table.pin(other) == 8
    assert table.num_pinned == 3
    with pytest.raises(ValueError, match="4 pages would be pinned but at most 3 may be"):
        table.pin(third)
    table.unpin(one)
    assert table.num_pinned == 2
    assert table.pin(third) == 4
    table.check(held=())


def test_a_prompt_pinned_again_keeps_what_is_published_by_now() -> None:
    table, tokens = a_table(max_pinned_pages=3), tuple(range(12))
    keep(table, tokens[:4])
    assert table.pin(tokens) == 4
    keep(table, tokens)
    assert table.pin(tokens) == 12
    table.check(held=())
    table.unpin(tokens)
    table.check(held=())
    assert table.num_pinned == 0


@pytest.mark.parametrize("budget", [-1, 15])
def test_a_pin_budget_that_leaves_no_page_is_refused(budget: int) -> None:
    with pytest.raises(ValueError, match="leave a page for requests"):
        a_table(num_pages=16, max_pinned_pages=budget)


def test_clearing_forgets_everything_but_not_under_a_running_request() -> None:
    table, tokens = a_table(max_pinned_pages=2), tuple(range(9))
    grant = run(table, tokens)
    with pytest.raises(ValueError, match="requests hold 3 pages; clear the cache when the engine is idle"):
        table.clear()
    table.release(grant.pages)
    table.pin(tokens)
    table.clear()
    table.check(held=())
    assert table.match(tokens) == ()
    assert (table.num_free, table.num_pinned) == (15, 0)


def test_a_namespace_gives_other_keys() -> None:
    keys = []
    for namespace in (b"draft a", b"draft b", b"draft a"):
        table = a_table(namespace=namespace)
        keep(table, tuple(range(8)))
        keys.append([entry.key for entry in table.index])
    assert keys[0] == keys[2]
    assert not set(keys[0]) & set(keys[1])


def test_chains_of_the_same_key_never_exchange_pages() -> None:
    table = a_table(digest=lambda data: b"")
    first = keep(table, (1, 1, 1, 1, 2))
    assert table.match((2, 2, 2, 2, 2)) == ()
    grant = run(table, (2,) * 9)
    assert grant.num_cached_entries == 0
    assert table.match((2,) * 9) == ()
    assert table.match((1, 1, 1, 1, 1, 1, 1, 1, 1)) == first[:1]  # same tokens again, but another parent
    table.check(held=(grant.pages,))


class Counting:
    """A digest that counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, data: bytes) -> bytes:
        self.calls += 1
        return blake2(data)


def test_each_page_is_hashed_once_to_publish_and_once_to_find() -> None:
    digest = Counting()
    table, tokens = a_table(num_pages=1100, digest=digest), tuple(range(4001))
    grant = table.take(tokens, 4200)
    assert grant is not None
    digest.calls = 0
    for ready in range(0, 4001, 10):
        table.publish(tokens, grant.pages, ready)
    assert digest.calls == 1000
    for _ in range(50):  # a request that waits for space asks every cycle
        assert table.take(tokens, 10_000) is None
    assert digest.calls == 2000
    assert table.match((5, *tokens)) == ()
    assert digest.calls == 2001  # a cold prompt is given up at its first page


def test_asking_again_notices_what_was_evicted_and_published_since() -> None:
    table, tokens = a_table(num_pages=6), tuple(range(13))
    first = keep(table, tokens)[:3]
    assert table.match(tokens) == first
    grown = table.grow((), 4 * PAGE_SIZE)  # evicts the last two of them
    assert grown is not None
    assert table.match(tokens) == first[:1]
    table.publish([7] * 16, grown, 16)  # their pages hold something else now
    assert table.match(tokens) == first[:1]
    table.release(grown)
    again = table.take(list(tokens), 13)
    assert again is not None
    table.publish(list(tokens), again.pages, 9)
    assert table.match(tokens) == again.pages[:2]
    table.publish(list(tokens), again.pages, 13)
    assert table.match(tokens) == again.pages[:3]
    table.check(held=(again.pages,))


def test_what_was_found_is_not_trusted_once_it_is_gone() -> None:
    table, tokens = a_table(num_pages=4), tuple(range(9))
    found = keep(table, tokens)[:2]
    assert table.match(tokens) == found
    grown = table.grow((), 3 * PAGE_SIZE)
    assert grown is not None
    table.publish([7] * 12, grown, 12)
    assert table.match(tokens) == ()


def test_keys_are_the_documented_chain() -> None:
    table = a_table(namespace=b"draft")
    keep(table, (1, 2, 3, 4, 5))
    (entry,) = table.index
    packed = b"".join(token.to_bytes(8, "little") for token in (1, 2, 3, 4))
    root = hashlib.blake2b(b"draft", digest_size=16).digest()
    assert entry.key == hashlib.blake2b(root + packed, digest_size=16).digest()


def test_publishing_under_other_tokens_is_a_bug() -> None:
    table = a_table()
    grant = run(table, (1,) * 8)
    with pytest.raises(AssertionError, match="other tokens"):
        table.publish((2,) * 9, grant.pages, 8)


def test_publishing_a_page_of_another_request_is_a_bug() -> None:
    table = a_table()
    one = run(table, (1,) * 4)
    table.release(one.pages)
    with pytest.raises(AssertionError, match="not held by one request alone"):
        table.publish((2,) * 4, (9,), 4)


def test_pages_released_twice_are_a_bug() -> None:
    table = a_table()
    grant = run(table, (1,) * 6)
    table.release(grant.pages)
    with pytest.raises(AssertionError, match="given back twice"):
        table.release(grant.pages)


def test_the_check_names_a_leaked_page() -> None:
    table = a_table()
    grant = run(table, (1,) * 6)
    with pytest.raises(AssertionError, match="page 1 counts 1 holders but 0 point at it"):
        table.check(held=())
    table.check(held=(grant.pages,))
    table.pages.grant_pages(1)
    with pytest.raises(AssertionError, match="page 3 is neither free nor published"):
        table.check()
