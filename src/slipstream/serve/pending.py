"""A request at the Python door: the text that belongs to it, from the prompt to the answer."""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import cast

from slipstream.config.model import ModelConfig
from slipstream.config.sampling import SamplingParams
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.output import Answer, Progress
from slipstream.flow.request import Request
from slipstream.serve.completion import Completion, Delta
from slipstream.serve.manner import USUAL, Manner, naming
from slipstream.text.grammar import Automaton, Grammars
from slipstream.text.stops import StopMatcher
from slipstream.text.template import ChatTemplate
from slipstream.text.tokenizer import Tokenizer

Message = Mapping[str, object]
MAX_SEED = 2**63


class Pending:
    """A request with the text that belongs to it."""

    __slots__ = ("ending", "index", "matcher", "request", "text")

    def __init__(
        self,
        text: str,
        request: Request,
        matcher: StopMatcher,
        *,
        stop_ids: Collection[int],
        grammar: Automaton | None,
        index: int,
    ) -> None:
        """index: which of the n answers to its prompt."""
        self.text, self.request, self.matcher, self.index = text, request, matcher, index
        self.ending = Ending(stop_ids=stop_ids, matcher=matcher, grammar=grammar)


class NoText:
    """The matcher of a request that no text can end, for those whose text is made elsewhere, or nowhere."""

    def push(self, token_id: int) -> bool:
        return False


class Requests:
    """Makes requests of texts, conversations and token ids; numbers them, and gives each a seed."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        config: ModelConfig,
        *,
        seeds: random.Random,
        open_grammars: Callable[[], Grammars] | None = None,
    ) -> None:
        """open_grammars: whose grammars are used, if others of the same tokenizer compile them too."""
        self.tokenizer, self.template = tokenizer, template
        self._eos_ids = tokenizer.eos_ids | set(config.eos_ids)
        self._vocab_size, self._seeds, self._count = config.vocab_size, seeds, 0
        self._open_grammars, self._grammars = open_grammars or self._own_grammars, None

    def raw(self, prompt: str | Sequence[int], params: SamplingParams, manner: Manner = USUAL) -> list[Pending]:
        """A text or token ids to continue, n times.

        Raises:
            ValueError: an id that the model does not know, or a bare list of ids where a list of prompts belongs.
        """
        if isinstance(prompt, str):
            return self._pending(prompt, self._encode(prompt, add_special_tokens=True), params, manner)
        if isinstance(prompt, int):
            raise ValueError("a list of token ids is one prompt; give a list of prompts: [[...]]")
        self._check_ids(prompt)
        text = self.tokenizer.decode(list(prompt), skip_special_tokens=False)
        return self._pending(text, list(prompt), params, manner)

    def tokens(self, prompt: Sequence[int], params: SamplingParams, manner: Manner = USUAL) -> list[Pending]:
        """Token ids to continue, n times, without their text; ValueError as `raw`."""
        self._check_ids(prompt)
        return self._pending("", list(prompt), params, manner)

    def chat(self, messages: Sequence[Message], params: SamplingParams, manner: Manner = USUAL) -> list[Pending]:
        """A conversation to answer, n times; ValueError as `render`."""
        text = self.render(messages)
        return self._pending(text, self._encode(text, add_special_tokens=False), params, manner)

    def render(self, messages: Sequence[Message]) -> str:
        """The text that a conversation becomes.

        Raises:
            ValueError: the model has no chat template, or it refuses the messages.
        """
        if not messages:
            raise ValueError("the conversation is empty: it has no messages; give at least one")
        if self.template is None:
            raise ValueError("this model has no chat template; use a raw prompt (--raw)")
        return self.template.render(messages)

    def _pending(self, text: str, ids: list[int], params: SamplingParams, manner: Manner) -> list[Pending]:
        """A request for each answer; answer i has seed + i."""
        self._check_ids([token for token, _ in params.bias])
        self._check_ids([token for word in params.bad_word_ids for token in word])
        params = replace(params, bad_word_ids=params.bad_word_ids + bad_word_ids(self.tokenizer, params.bad_words))
        seed = self._seeds.randrange(MAX_SEED) if params.seed is None else params.seed
        stop_ids = set(params.stop_ids) | (set() if params.ignore_eos else self._eos_ids)
        automaton = self._automaton(params)
        found: list[Pending] = []
        for index in range(params.n):
            own = (seed + index) % MAX_SEED
            request = Request(
                id=self._count,
                prompt=tuple(ids),
                params=params,
                seed=own,
                priority=manner.priority,
                steps=manner.steps,
            )
            matcher = matcher_for(self.tokenizer, params)
            grammar = None if automaton is None else automaton.copy()
            found.append(Pending(text, request, matcher, stop_ids=stop_ids, grammar=grammar, index=index))
            self._count += 1
        return found

    def _automaton(self, params: SamplingParams) -> Automaton | None:
        """Where an answer to a request with a grammar begins.

        Raises:
            ValueError: the grammar means nothing, or the tokenizer cannot have any.
        """
        return None if params.grammar is None else self.grammars.open(params.grammar)

    @property
    def grammars(self) -> Grammars:
        """Of the tokenizer.

        Raises:
            ValueError: it cannot have any.
        """
        if self._grammars is None:
            self._grammars = self._open_grammars()
        return self._grammars

    def _own_grammars(self) -> Grammars:
        return Grammars(self.tokenizer, vocab_size=self._vocab_size, eos_ids=self._eos_ids)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a text; a tokenizer may know tokens that the model has no embedding for."""
        ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        self._check_ids(ids)
        return ids

    def _check_ids(self, ids: Sequence[int]) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < self._vocab_size):
            bad = next(token for token in ids if not 0 <= token < self._vocab_size)
            raise ValueError(f"token id {bad} is outside the model's vocabulary of {self._vocab_size}")


def add_all(engine: Engine, pending: Sequence[Pending]) -> None:
    """Queue requests.

    Raises:
        ValueError: one could never run; it names the prompt.
    """
    num_prompts, prompt = sum(each.index == 0 for each in pending), -1
    for each in pending:
        prompt += each.index == 0
        with naming(prompt, num_prompts):
            engine.add(each.request, each.ending)


def matcher_for(tokenizer: Tokenizer, params: SamplingParams) -> StopMatcher:
    """Finds the stop strings of a request."""
    return StopMatcher(tokenizer, params.stop, min_tokens=params.min_tokens)


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Every way in which words may stand: at the beginning of a text, and after a space."""
    spellings = [form for word in words for form in (word.lstrip(), f" {word.lstrip()}")]
    found = [tuple(tokenizer.encode(form, add_special_tokens=False)) for form in spellings]
    return tuple(dict.fromkeys(ids for ids in found if ids))


def completion_of(answer: Answer, pending: Pending) -> Completion:
    return Completion(
        prompt=pending.text,
        text=pending.matcher.text,
        token_ids=answer.tokens,
        finish_reason=answer.finish_reason.value,
        num_prompt_tokens=answer.num_prompt,
        num_cached_tokens=answer.num_cached,
        seed=answer.seed,
        runs=answer.runs,
        statistics=answer.statistics,
        prefill_s=answer.prefill_s,
        decode_s=answer.decode_s,
        index=pending.index,
        logprobs=answer.logprobs,
        prompt_logprobs=answer.prompt_logprobs,
    )


def delta_of(news: Progress, shown: StopMatcher, pending: Pending) -> Delta:
    for token in news.new_tokens:
        shown.push(token)
    text = shown.finish() if news.answer else shown.take()
    completion = completion_of(news.answer, pending) if news.answer else None
    return Delta(
        text=text,
        token_ids=news.new_tokens,
        accepted=news.accepted,
        logprobs=news.logprobs,
        completion=completion,
    )


def several(conversations: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation, or several, as a list of them."""
    if all(isinstance(each, Mapping) for each in conversations):
        return [cast("Sequence[Message]", conversations)]
    return list(cast("Sequence[Sequence[Message]]", conversations))


def params_for(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise ValueError(f"{len(params)} sampling parameters came for {count} prompts; give one, or one for each")
    return list(params)
