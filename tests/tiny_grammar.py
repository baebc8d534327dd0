"""A tiny engine with a tokenizer, and what grammars allow, found the slow way."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import regex
from llguidance import LLMatcher, LLTokenizer

from slipstream.config.grammar import Grammar, GrammarKind
from slipstream.text.grammar import WHITESPACE, Grammars
from slipstream.text.tokenizer import Tokenizer
from tests.tiny_engine import TINY
from tests.unit.text import tiny_tokenizer

RAW = tiny_tokenizer.raw()
EOS: int = RAW.token_to_id(tiny_tokenizer.EOS) or 0  # which is another token
CONFIG = replace(TINY, vocab_size=RAW.get_vocab_size(), eos_ids=(EOS,))


@cache
def grammars() -> Grammars:
    """Of the tiny tokenizer."""
    return Grammars(Tokenizer(RAW, bos_id=None, eos_ids=[EOS]), vocab_size=CONFIG.vocab_size, eos_ids=())


@cache
def _bytes() -> dict[int, bytes]:
    """What each token stands for, specials left out: the byte-level alphabet (GPT-2), undone."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}
    special = RAW.get_added_tokens_decoder()
    spelled = {index: RAW.id_to_token(index) or "" for index in range(CONFIG.vocab_size) if index not in special}
    return {index: bytes(letters[letter] for letter in token) for index, token in spelled.items()}


@cache
def _tokens() -> LLTokenizer:
    return LLTokenizer(RAW.to_str(), n_vocab=CONFIG.vocab_size, eos_token=[EOS])


def spell(answer: Sequence[int]) -> bytes:
    """The bytes of an answer."""
    return b"".join(_bytes()[token] for token in answer if token != EOS)


def allowed(grammar: Grammar, answer: Sequence[int]) -> frozenset[int]:
    """Tokens that may follow an answer."""
    return _allowed(grammar, tuple(answer))


@cache
def _allowed(grammar: Grammar, answer: tuple[int, ...]) -> frozenset[int]:
    """By a fresh matcher, which is compared with trying each token: where only one text may come, one spelling may."""
    matcher = _fresh(grammar, answer)
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
    found = frozenset(np.nonzero(bits[: CONFIG.vocab_size])[0].tolist())
    if grammar.kind in (GrammarKind.CHOICE, GrammarKind.REGEX):
        tried = _tried(grammar, spell(answer))
        assert found == frozenset(tried) or (
            sorted(found) == matcher.compute_ff_tokens()[:1] and found < frozenset(tried)
        )
    return found


def _tried(grammar: Grammar, so_far: bytes) -> set[int]:
    goes_on = _by_prefix(grammar)
    found = {token for token, spelled in _bytes().items() if spelled and goes_on(so_far + spelled)}
    return found | ({EOS} if _complete(grammar, so_far) else set())


def ended(grammar: Grammar, answer: Sequence[int]) -> bool:
    """Whether nothing but EOS may follow, or EOS has come."""
    return EOS in answer or allowed(grammar, answer) == {EOS}


def follows(grammar: Grammar, text: str) -> bool:
    """Whether a whole text is what a grammar describes; of JSON and Lark grammars, by a fresh matcher."""
    if grammar.kind in (GrammarKind.CHOICE, GrammarKind.REGEX):
        return _complete(grammar, text.encode())
    return _fresh(grammar, RAW.encode(text, add_special_tokens=False).ids).is_accepting()


def _by_prefix(grammar: Grammar) -> Callable[[bytes], bool]:
    if grammar.kind is GrammarKind.CHOICE:
        texts = [text.encode() for text in json.loads(grammar.text)]
        return lambda prefix: any(text.startswith(prefix) for text in texts)
    pattern = regex.compile(grammar.text.encode())
    return lambda prefix: pattern.fullmatch(prefix, partial=True) is not None


def _complete(grammar: Grammar, text: bytes) -> bool:
    if grammar.kind is GrammarKind.CHOICE:
        return text.decode(errors="replace") in json.loads(grammar.text)
    return regex.fullmatch(grammar.text.encode(), text) is not None


def _fresh(grammar: Grammar, answer: Sequence[int]) -> LLMatcher:
    """A matcher of its own that takes the whole answer at once."""
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        written = LLMatcher.grammar_from_json_schema(grammar.text, defaults={"whitespace_pattern": WHITESPACE})
    elif grammar.kind is GrammarKind.REGEX:
        written = LLMatcher.grammar_from_regex(grammar.text)
    elif grammar.kind is GrammarKind.LARK:
        written = LLMatcher.grammar_from_lark(grammar.text)
    else:
        written = LLMatcher.grammar_from_regex("|".join(regex.escape(text) for text in json.loads(grammar.text)))
    matcher = LLMatcher(_tokens(), written, log_level=0)
    assert matcher.consume_tokens(list(answer)), "an answer follows its grammar"
    return matcher
