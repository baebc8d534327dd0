"""Chunks, grants, refusals and victims, as decisions over integers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.config.engine import EngineConfig
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import speculation
from slipstream.flow.request import Request
from slipstream.schedule.scheduler import (
    HEADROOM,
    check_request,
    comfortable,
    entries_for,
    most_entries,
    next_chunks,
    victim,
)

ENTERING = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 90)), max_size=8)
CONFIG = EngineConfig(speculation=speculation(4, 3, 9), max_len=200, page_size=16, num_pages=9)


def entering(lengths: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    return [(request, done, done + left) for request, (done, left) in enumerate(lengths)]


@given(ENTERING, st.integers(1, 50))
def test_chunks_begin_where_a_request_stands_and_end_on_the_grid(lengths: list[tuple[int, int]], chunk: int) -> None:
    states = entering(lengths)
    for found, (request, done, total) in zip(next_chunks(states, chunk), states, strict=False):
        assert (found.request, found.start) == (request, done)
        assert done < found.stop <= total
        assert found.stop == total or found.stop % chunk == 0
        assert found.stop - found.start <= chunk


@given(ENTERING, st.integers(1, 50))
def test_a_forward_holds_at_most_a_chunk_of_tokens_and_the_first_always_goes(
    lengths: list[tuple[int, int]], chunk: int
) -> None:
    found = next_chunks(entering(lengths), chunk)
    assert sum(each.stop - each.start for each in found) <= chunk
    assert bool(found) == bool(lengths)


@given(ENTERING, st.integers(1, 50))
def test_nobody_in_line_is_passed_and_room_is_not_left_empty(lengths: list[tuple[int, int]], chunk: int) -> None:
    states = entering(lengths)
    found = next_chunks(states, chunk)
    assert [each.request for each in found] == list(range(len(found)))
    if len(found) < len(states):
        _, done, total = states[len(found)]
        size = min(total, (done // chunk + 1) * chunk) - done
        assert size + sum(each.stop - each.start for each in found) > chunk


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 20))
def test_every_position_is_run_exactly_once_whatever_shares_the_forwards(totals: list[int], chunk: int) -> None:
    done = [0] * len(totals)
    for _ in range(sum(totals)):
        states = [(each, done[each], total) for each, total in enumerate(totals) if done[each] < total]
        for found in next_chunks(states, chunk):
            assert done[found.request] == found.start
            done[found.request] = found.stop
    assert done == totals


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 99)), min_size=1, unique_by=lambda each: each[1]))
def test_the_last_to_come_among_the_least_important_makes_room(tickets: list[tuple[int, int]]) -> None:
    chosen = victim([(priority, arrival, 1000 + arrival) for priority, arrival in tickets])
    priority = max(priority for priority, _ in tickets)
    assert chosen == 1000 + max(arrival for each, arrival in tickets if each == priority)


@given(st.integers(1, 150), st.integers(1, 100), st.integers(0, 300))
def test_a_comfortable_grant_is_enough_now_and_never_more_than_the_request_can_use(
    prompt: int, max_tokens: int, tokens: int
) -> None:
    request = Request(id=0, prompt=(1,) * prompt, params=SamplingParams(max_tokens=max_tokens), seed=0)
    most = most_entries(request, CONFIG)
    needed = min(entries_for(prompt + tokens, CONFIG), most)
    assert needed <= comfortable(needed, request, CONFIG) <= min(most, needed + HEADROOM)


def test_a_cycle_may_write_its_root_and_the_largest_trees_tail() -> None:
    assert entries_for(10, CONFIG) == 10 + 1 + 9
    assert most_entries(Request(id=0, prompt=(1,) * 150, params=SamplingParams(max_tokens=90), seed=0), CONFIG) == 210


REFUSED = [
    ({"prompt": ()}, "the prompt is empty"),
    ({"prompt": (1,) * 200}, "200 tokens but the context holds 200"),
    ({"prompt": (1,) * 60, "params": SamplingParams(max_tokens=100)}, "need 170 KV entries but the cache holds 128"),
    ({"steps": -1}, "steps must be 0"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED, ids=["empty", "long", "cache", "steps"])
def test_what_could_never_run_is_refused_with_a_remedy(changes: dict[str, object], sentence: str) -> None:
    asked = {"id": 0, "prompt": (1, 2), "params": SamplingParams(max_tokens=9), "seed": 0, **changes}
    with pytest.raises(ValueError, match=sentence):
        check_request(Request(**asked), CONFIG)


def test_what_just_fits_is_not_refused() -> None:
    check_request(Request(id=0, prompt=(1,) * 60, params=SamplingParams(max_tokens=58), seed=0, steps=0), CONFIG)
