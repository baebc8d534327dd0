"""Stop strings are found wherever tokens cut them, and a stream never shows the beginning of one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.text.stops import StopMatcher
from slipstream.text.tokenizer import Tokenizer
from tests.unit.text import tiny_tokenizer
from tests.unit.text.tiny_tokenizer import EOS, TURN

RAW = tiny_tokenizer.raw()
TOKENIZER = Tokenizer(RAW, bos_id=0, eos_ids=[1])
LETTERS = "ab\u00e9\U0001f680"


def spelled(text: str) -> list[int]:
    """Give one token a byte, so that every place is one where tokens may be cut."""
    ids = [TOKENIZER.encode(char) for char in text]
    return [index for found in ids for index in found]


def run(matcher: StopMatcher, ids: list[int]) -> int | None:
    """Push until a stop and say at which token it came."""
    return next((place for place, index in enumerate(ids) if matcher.push(index)), None)


@settings(max_examples=500, deadline=None)
@given(
    text=st.text(LETTERS, max_size=40),
    stops=st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
)
def test_the_text_ends_at_the_first_stop_to_be_whole(text: str, stops: list[str], include: bool) -> None:
    matcher = StopMatcher(TOKENIZER, stops, include_stop=include)
    place = run(matcher, spelled(text))
    ends = [(start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0]
    if not ends:
        assert place is None
        assert matcher.text == text
        return
    end, start = min(ends)
    assert matcher.text == matcher.visible_text == text[: end if include else start]
    assert place == len(spelled(text[:end])) - 1


@settings(max_examples=500, deadline=None)
@given(text=st.text(LETTERS, max_size=40), stops=st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3))
def test_what_a_stream_has_shown_is_never_taken_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(TOKENIZER, stops)
    shown = ""
    for index in spelled(text):
        stopped = matcher.push(index)
        shown += matcher.take()
        assert shown == matcher.visible_text
        if stopped:
            break
    assert shown + matcher.finish() == matcher.text


def test_what_may_become_a_stop_is_held_back_and_no_more() -> None:
    matcher = StopMatcher(TOKENIZER, ["\n\nUser:", "aab"])
    shown = []
    for char in "x\n\nUse y aa":
        run(matcher, spelled(char))
        shown.append(matcher.take())
    assert shown == ["x", "", "", "", "", "", "\n\nUse ", "y", " ", "", ""]
    assert matcher.finish() == "aa"


def test_without_stop_strings_everything_is_shown_at_once() -> None:
    matcher = StopMatcher(TOKENIZER)
    assert run(matcher, TOKENIZER.encode("the fox")) is None
    assert matcher.visible_text == matcher.text == "the fox"


def test_of_two_stops_that_end_together_the_longer_is_cut() -> None:
    matcher = StopMatcher(TOKENIZER, ["c", "abc"])
    run(matcher, TOKENIZER.encode("x abcd"))
    assert matcher.text == "x "


def test_a_stop_string_inside_one_token_is_found() -> None:
    matcher = StopMatcher(TOKENIZER, ["ro"])
    ids = TOKENIZER.encode("the quick brown fox")
    assert run(matcher, ids) is not None
    assert matcher.text == "the quick b"


def test_a_stop_id_ends_the_text_before_it_or_after() -> None:
    a, b = TOKENIZER.encode("a"), TOKENIZER.encode("b")
    for include, expected in ((False, "a"), (True, "ab")):
        matcher = StopMatcher(TOKENIZER, stop_ids=b, include_stop=include)
        assert run(matcher, [*a, *b, *a]) == 1
        assert matcher.text == matcher.visible_text == expected


def test_a_special_tokens_text_stops_as_its_id_does() -> None:
    matcher = StopMatcher(TOKENIZER, [TURN])
    assert run(matcher, TOKENIZER.encode(f"a{EOS}b{TURN}c")) == 3
    assert matcher.text == "ab"


def test_a_stop_that_is_whole_too_early_is_none() -> None:
    matcher = StopMatcher(TOKENIZER, ["ab"], min_tokens=5)
    assert run(matcher, spelled("ababa")) is None
    assert run(matcher, spelled("b")) == 0
    assert (matcher.text, matcher.visible_text) == ("abab", "abab")
    special = StopMatcher(TOKENIZER, [TURN], min_tokens=3)
    assert run(special, TOKENIZER.encode(f"{TURN}{TURN}{TURN}a")) == 2


def test_half_a_character_is_in_the_text_but_not_shown() -> None:
    matcher = StopMatcher(TOKENIZER, ["z"])
    ids = TOKENIZER.encode("a\u0d9e")[:-1]
    run(matcher, ids)
    assert matcher.visible_text == "a"
    assert matcher.text == TOKENIZER.decode(ids)
    assert matcher.take() + matcher.finish() == TOKENIZER.decode(ids)


def test_a_stop_holds_for_good() -> None:
    matcher = StopMatcher(TOKENIZER, ["b"])
    run(matcher, spelled("ab"))
    assert matcher.push(spelled("a")[0])
    assert (matcher.text, matcher.stopped) == ("a", True)


def test_a_copy_goes_on_by_itself() -> None:
    matcher = StopMatcher(TOKENIZER, ["ab"])
    run(matcher, spelled("xa"))
    other = matcher.copy()
    assert run(other, spelled("b")) == 0
    assert run(matcher, spelled("ay")) is None
    assert (other.text, matcher.text) == ("x", "xaay")


def test_a_search_looks_at_the_end_only() -> None:
    matcher = StopMatcher(TOKENIZER, ["never", "zz"])
    for _ in range(300):
        run(matcher, spelled("abab"))
        matcher.take()
    assert len(matcher._tail) == len("never") - 1
    assert max(map(len, matcher._settled)) <= 1


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="a stop string is empty; leave it out"):
        StopMatcher(TOKENIZER, ["a", ""])
