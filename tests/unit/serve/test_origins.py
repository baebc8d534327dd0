"""Every character of an answer is the draft's or the target's, however tokens and stop strings cut it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.serve.http.job import Choice
from slipstream.serve.http.origins import Origins, Part
from slipstream.serve.http.reasoning import ThinkSplitter
from slipstream.serve.http.tools import HermesTools, NoTools
from slipstream.serve.messages import End, Piece
from slipstream.text.stops import StopMatcher
from slipstream.text.tokenizer import Tokenizer
from tests.unit.text import tiny_tokenizer

TOKENIZER = Tokenizer(tiny_tokenizer.raw(), bos_id=0, eos_ids=[1])
LETTERS = "ab\u00e9\U0001f680"
END = End("stop", 1, 0, 0, 0, 1, 1, 1, [], 0.0, 0.0)


def spelled(text: str) -> list[int]:
    """A token a byte, for what is not ASCII."""
    return [index for char in text for index in TOKENIZER.encode(char)]


def choice(*, stops: tuple[str, ...] = (), thinks: bool = False) -> Choice:
    splitter = ThinkSplitter(thinking=False) if thinks else None
    parser = HermesTools() if thinks else NoTools()
    return Choice(0, StopMatcher(TOKENIZER, stops), parser, splitter, origins=Origins())


def pieces(tokens: list[int], accepted: list[int]) -> list[Piece]:
    """Tokens in runs, of which the first so many are drafted and one more is the target's; the last one ends it."""
    found: list[Piece] = []
    while tokens:
        count = accepted[len(found) % len(accepted)]
        run, tokens = tokens[: count + 1], tokens[count + 1 :]
        found.append(Piece(answer=0, tokens=run, accepted=min(count, len(run)), end=None if tokens else END))
    return found


def tints(parts: list[Part]) -> list[tuple[str, bool]]:
    return [(char, part.drafted) for part in parts for char in part.text]


def expected(text: str, told: list[Piece]) -> list[tuple[str, bool]]:
    """Of each character the origin of its last byte's token."""
    drafted = [place < piece.accepted for piece in told for place in range(len(piece.tokens))]
    ends = [len(spelled(text[: place + 1])) for place in range(len(text))]
    return [(char, drafted[end - 1]) for char, end in zip(text, ends, strict=True)]


@settings(max_examples=400, deadline=None)
@given(
    text=st.text(LETTERS, min_size=1, max_size=30),
    accepted=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    stops=st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=2),
)
def test_a_character_is_of_the_token_that_made_it_whole(text: str, accepted: list[int], stops: list[str]) -> None:
    told, growing = pieces(spelled(text), accepted), choice(stops=tuple(stops))
    fresh = [growing.take(piece) for piece in told]
    shown = "".join(each.text for each in fresh)
    parts = [part for each in fresh for part in each.parts or []]
    assert "".join(part.text for part in parts) == shown
    assert text.startswith(shown)
    assert tints(parts) == expected(text, told)[: len(shown)]
    for each in fresh:  # neighbours in a chunk differ, and none is empty
        assert all(part.text for part in each.parts or [])
        assert all(one.drafted != other.drafted for one, other in zip(each.parts or [], (each.parts or [])[1:]))


def test_bytes_that_become_no_character_are_of_the_last_token() -> None:
    fresh = choice().take(Piece(answer=0, tokens=spelled("\u20ac")[:2], accepted=1, end=END))
    assert fresh.parts == [Part(text="\ufffd", drafted=False)]


def test_parts_hold_the_text_before_thoughts_and_calls_are_found_in_it() -> None:
    text = '<think>hm</think>so <tool_call>{"name": "f", "arguments": {}}</tool_call>'
    growing = choice(thinks=True)
    fresh = [growing.take(piece) for piece in pieces(TOKENIZER.encode(text), [2])]
    assert "".join(each.reasoning for each in fresh) == "hm"
    assert len(growing.calls) == 1
    assert "".join(part.text for each in fresh for part in each.parts or []) == text


@pytest.mark.parametrize("tokens", [[], [1]])
def test_tokens_without_text_are_no_part(tokens: list[int]) -> None:
    fresh = choice().take(Piece(answer=0, tokens=tokens, accepted=0, end=END))
    assert fresh.parts == []
    assert fresh.num_tokens == len(tokens)
