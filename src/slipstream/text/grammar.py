"""Grammars that answers must follow, through llguidance: which tokens may come next, which must, and when it ends.

A token stands for its bytes, so a grammar of characters becomes an automaton over token ids. It ends an answer where
nothing but EOS may follow; where its text may also go on, EOS is one of the tokens that may come. Compiling one may
take long, so it is done on threads; llguidance holds no lock of Python's meanwhile.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from slipstream.config.grammar import Grammar, GrammarKind
from slipstream.text.tokenizer import Tokenizer

KEPT = 256  # compiled grammars: as many as a server has answers in flight, unless it is told otherwise
THREADS = 4
WORD_BITS = 32
WHITESPACE = r"\r?\n?[ \t]{0,40}"  # between JSON's parts, so that no answer is lost in it; a schema may say otherwise


class Automaton:
    """One answer's way through its grammar. A copy goes on from where this one is."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def push(self, token: int) -> bool:
        """Take a token if it may come here."""
        return self._matcher.try_consume_tokens([token]) == 1

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        assert self._matcher.rollback(num_tokens), "only tokens that were taken are taken back"

    @property
    def ended(self) -> bool:
        """Whether the answer is complete: nothing but EOS may follow, or EOS has come."""
        return self._matcher.is_stopped()

    @property
    def broken(self) -> bool:
        """Whether it has given up: the grammar asks for more states than it may have."""
        return self._matcher.is_error()

    def fill(self, words_W: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        """Set bit i of the words where token i may come next. It holds no lock of Python's meanwhile."""
        assert words_W.flags.c_contiguous, "the words are written in place"
        self._matcher.unsafe_compute_mask_ptr(words_W.ctypes.data, words_W.nbytes)

    def forced(self) -> list[int]:
        """Tokens that spell the only text that may come next; the target may spell it otherwise."""
        return self._matcher.compute_ff_tokens()

    def copy(self) -> "Automaton":
        """One that goes its own way from here."""
        return Automaton(self._matcher.deep_copy())


class Grammars:
    """Compiles grammars for one tokenizer, and keeps the last ones."""

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, eos_ids: Collection[int]) -> None:
        """vocab_size: ids that the model scores.

        Raises:
            ValueError: nothing could end an answer, or the tokenizer is of a kind that llguidance does not know.
        """
        self.num_words = -(-max(vocab_size, tokenizer.vocab_size) // WORD_BITS)
        ends = sorted(tokenizer.eos_ids | set(eos_ids))
        if not ends:
            raise ValueError("no grammar can end, for this model names no EOS token; add eos_token_id to config.json")
        try:
            self._tokens = LLTokenizer(tokenizer.raw.to_str(), n_vocab=self.num_words * WORD_BITS, eos_token=ends)
        except ValueError as error:
            raise ValueError(f"grammars do not work with this model's tokenizer: {reason_of(str(error))}") from None
        self._compiled: OrderedDict[Grammar, Future[Automaton]] = OrderedDict()  # the last one that was wanted last
        self._lock, self._threads = threading.Lock(), ThreadPoolExecutor(THREADS, "grammars")

    def start(self, grammar: Grammar) -> "Future[Automaton]":
        """Compile a grammar on a thread, unless that was begun before; `open` has what comes of it."""
        with self._lock:
            found = self._compiled.get(grammar)
            if found is None:
                found = self._compiled[grammar] = self._threads.submit(self._compile, grammar)
            self._compiled.move_to_end(grammar)
            if len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
            return found

    def open(self, grammar: Grammar, tokens: Sequence[int] = ()) -> Automaton:
        """An automaton that has seen these tokens of an answer; waits until its grammar is compiled.

        Raises:
            ValueError: the grammar means nothing; the sentence says where.
        """
        compiled = self.start(grammar)
        if isinstance(error := compiled.exception(), ValueError):
            raise ValueError(str(error))  # each asker has an error of its own
        automaton = compiled.result().copy()
        for token in tokens:
            automaton.push(token)
        return automaton

    def _compile(self, grammar: Grammar) -> Automaton:
        written = _in_llguidance(grammar)
        failed, messages = LLMatcher.validate_grammar_with_warnings(written, self._tokens)
        matcher = None if failed else LLMatcher(self._tokens, written, log_level=0)
        if matcher is None or matcher.is_error():
            reason = messages[0] if messages else matcher.get_error() if matcher else ""
            kind = grammar.kind.value.replace("_", " ")
            raise ValueError(f"the {kind} cannot be used: {reason_of(reason)}; mend it, or leave it out")
        return Automaton(matcher)


def reason_of(message: str) -> str:
    """What llguidance says, without the picture of where."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    return (errors or lines or ["no reason was given"])[0]


def _in_llguidance(grammar: Grammar) -> str:
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return LLMatcher.grammar_from_json_schema(grammar.text, defaults={"whitespace_pattern": WHITESPACE})
    if grammar.kind is GrammarKind.REGEX:
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind is GrammarKind.LARK:
        return LLMatcher.grammar_from_lark(grammar.text)
    texts = (json.dumps(each, ensure_ascii=False) for each in json.loads(grammar.text))
    return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))
