"""Text given piece by piece is the text of the whole, whatever the pieces."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Raw
from tokenizers import decoders
from tokenizers.models import BPE

from slipstream.text.detokenize import MAX_PENDING, Detokenizer
from slipstream.text.tokenizer import Tokenizer
from tests.unit.text import tiny_tokenizer

RAW = tiny_tokenizer.raw()
BYTE_LEVEL = Tokenizer(RAW, bos_id=0, eos_ids=[1])
TEXTS = st.text(st.sampled_from("ab \n\u00e9\u00fc\u4f60\u597d\u3053\U0001f680\U0001f44d\U0001f3fd\u200d\ufffd\u0301"))
IDS = st.lists(st.integers(0, RAW.get_vocab_size() - 1), max_size=60)


def _byte_fallback() -> Tokenizer:
    """Build a tokenizer with SentencePiece's spaces and one token for each byte."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a"]
    raw = Raw(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[], byte_fallback=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    raw.decoder = decoders.Sequence(steps)
    return Tokenizer(raw, bos_id=1, eos_ids=[2])


BYTE_FALLBACK = _byte_fallback()


def chunked(ids: list[int], cuts: list[int]) -> list[list[int]]:
    places = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[start:stop] for start, stop in itertools.pairwise(places)]


def streamed(tokenizer: Tokenizer, chunks: list[list[int]], **kwargs: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **kwargs)
    return [*(detokenizer.push(chunk) for chunk in chunks), detokenizer.finish()]


CUTS = st.lists(st.integers(0, 1000), max_size=12)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, cuts=CUTS)
def test_the_pieces_of_a_text_join_to_the_text(text: str, cuts: list[int]) -> None:
    ids = BYTE_LEVEL.encode(text)
    pieces = streamed(BYTE_LEVEL, chunked(ids, cuts))
    assert "".join(pieces) == text
    assert "\ufffd" in text or all("\ufffd" not in piece for piece in pieces)


@settings(max_examples=500, deadline=None)
@given(ids=IDS, cuts=CUTS, skip=st.booleans())
def test_the_pieces_of_any_ids_join_to_what_decoding_them_gives(ids: list[int], cuts: list[int], skip: bool) -> None:
    pieces = streamed(BYTE_LEVEL, chunked(ids, cuts), skip_special_tokens=skip)
    assert "".join(pieces) == BYTE_LEVEL.decode(ids, skip_special_tokens=skip)


BYTES = st.lists(st.sampled_from([0x80, 0x9F, 0xBF, 0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0xFF, 0xC3, 0x41]), max_size=60)


@settings(max_examples=500, deadline=None)
@given(content=BYTES)
def test_broken_bytes_decode_as_they_do_in_one_go(content: list[int]) -> None:
    alphabet = {byte: RAW.token_to_id(token) for byte, token in _spelling().items()}
    ids = [alphabet[byte] for byte in content]
    assert "".join(streamed(BYTE_LEVEL, [[index] for index in ids])) == bytes(content).decode(errors="replace")


def _spelling() -> dict[int, str]:
    """Give the character with which a byte-level vocabulary writes each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("ab \u4f60\u00e9\U0001f680"), max_size=20).filter(lambda text: text[:1] != " "))
def test_spaces_and_byte_tokens_stream_as_well(text: str) -> None:
    table = {"a": 260, "b": 261, " ": 259}
    ids = [index for char in text for index in ([table[char]] if char in table else [3 + b for b in char.encode()])]
    assert "".join(streamed(BYTE_FALLBACK, [[index] for index in ids])) == text


def test_a_character_appears_when_its_last_byte_does() -> None:
    detokenizer = Detokenizer(BYTE_FALLBACK)
    pieces = [detokenizer.push([3 + byte]) for byte in "\U0001f680".encode()]
    assert pieces == ["", "", "", "\U0001f680"]


def test_ids_that_change_text_already_given_start_afresh() -> None:
    detokenizer = Detokenizer(BYTE_FALLBACK)
    pieces = [detokenizer.push([3 + byte]) for byte in "\u4f60".encode()]
    pieces += [detokenizer.push([3 + 0xFF]), detokenizer.push([260]), detokenizer.push([261]), detokenizer.finish()]
    assert "".join(pieces) == "\u4f60\ufffdab"


def test_a_cut_off_character_is_finished_as_decode_finishes_it() -> None:
    detokenizer = Detokenizer(BYTE_LEVEL)
    ids = BYTE_LEVEL.encode("a\u0d9e")[:-1]
    assert detokenizer.push(ids) == "a"
    assert detokenizer.finish() == BYTE_LEVEL.decode(ids)[1:]
    assert detokenizer.finish() == ""


def test_a_copy_goes_on_by_itself() -> None:
    detokenizer = Detokenizer(BYTE_FALLBACK)
    first, last = [3 + byte for byte in "\u4f60".encode()][:2], 3 + "\u4f60".encode()[2]
    detokenizer.push([260, *first])
    other = detokenizer.copy()
    assert other.push([last]) == "\u4f60"
    assert detokenizer.push([260]) == "\ufffd\ufffda"


def test_special_tokens_are_hidden_or_shown() -> None:
    ids = BYTE_LEVEL.encode("<|begin|>a<think>b<|end|>")
    assert "".join(streamed(BYTE_LEVEL, [ids])) == "a<think>b"
    assert "".join(streamed(BYTE_LEVEL, [ids], skip_special_tokens=False)) == "<|begin|>a<think>b<|end|>"


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("text", BYTE_LEVEL.encode("the fox \u4f60\u597d " * 4)),
        ("hidden", [1]),
        ("broken bytes", [RAW.token_to_id(_spelling()[0x80])]),
        ("unknown", [100_000]),
    ],
)
def test_the_cost_of_a_token_does_not_grow_with_the_text(name: str, ids: list[int]) -> None:
    detokenizer = Detokenizer(BYTE_LEVEL)
    for index in itertools.islice(itertools.cycle(ids), 2000):
        detokenizer.push([index])
        # A step decodes these and nothing else.
        assert len(detokenizer._context) + len(detokenizer._pending) <= 2 * MAX_PENDING, name
