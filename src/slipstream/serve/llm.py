"""The Python door: `from slipstream import LLM`."""

import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

from slipstream.config.draft import CaptureConvention
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.output import Answer, Progress
from slipstream.flow.request import Request
from slipstream.runner.load import draft_shape, load_models, read_model_config, weight_bytes
from slipstream.runner.worker import Worker
from slipstream.serve.completion import Completion, Delta
from slipstream.serve.settle import (
    pool_bytes,
    settle_device,
    settle_dtype,
    settle_engine,
    settle_max_len,
    settle_paths,
    settle_speculation,
)
from slipstream.telemetry.clock import Clock, Stopwatch
from slipstream.text.stops import StopMatcher
from slipstream.text.template import load_template
from slipstream.text.tokenizer import load_tokenizer

Message = Mapping[str, object]
MAX_SEED = 2**63


class LLM:
    """A target, its draft and an engine around them.

    model, draft: a directory, a .gguf file, a pulled name or a hub id. draft "auto" takes the shipped draft of the
    default model; None decodes plainly. steps, topk, draft_tokens: see config/speculation.py; a chain of 4 by
    default. device: auto, cpu, cuda, cuda:N. dtype: auto (fp32 on a CPU, bf16 on CUDA), float32, bfloat16, float16.
    seed: makes the seeds of requests that bring none reproducible. kv_gib: budget of both KV pools. on_load is told
    the bytes of every tensor as it is placed.

    Raises:
        ValueError: anything that does not fit, in one sentence.
    """

    def __init__(
        self,
        model: str,
        *,
        draft: str | None = "auto",
        steps: int | None = None,
        topk: int | None = None,
        draft_tokens: int | None = None,
        device: str = "auto",
        dtype: str = "auto",
        seed: int | None = None,
        max_len: int | None = None,
        max_batch: int = 16,
        kv_gib: float | None = None,
        capture_convention: str = "auto",
        on_load: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        with Stopwatch(Clock()) as watch:
            paths = settle_paths(model, draft)
            self.model_config = read_model_config(paths.model)
            shape = settle_speculation(steps, topk, draft_tokens, has_draft=paths.draft is not None)
            self.device = settle_device(device)
            self.dtype = settle_dtype(dtype, self.device)
            self.max_len = settle_max_len(max_len, self.model_config)
            self.tokenizer = load_tokenizer(paths.model)
            self.template = load_template(paths.model)
            convention = _convention(capture_convention)
            draft_body = draft_shape(paths.draft, self.model_config, convention)
            config = settle_engine(
                shape,
                max_len=self.max_len,
                max_batch=max_batch,
                kv_gib=kv_gib,
                entry_bytes=pool_bytes(self.model_config, draft_body, self.dtype),
                weights=weight_bytes(self.model_config, self.dtype),
                device=self.device,
            )
            target, loaded = load_models(
                paths.model,
                paths.draft,
                config=self.model_config,
                device=self.device,
                dtype=self.dtype,
                max_position=self.max_len,
                convention=convention,
                on_tensor=on_load,
            )
            self.engine = Engine(config, Worker(config, target, loaded), clock=Clock())
        self.load_s = watch.seconds
        self.draft_path = paths.draft
        self._seeds = random.Random(seed)
        self._num_requests = 0

    @property
    def speculation(self) -> Speculation:
        """The shape of a cycle now."""
        return self.engine.speculation

    def reconfigure(self, *, steps: int, topk: int = 1, draft_tokens: int | None = None) -> None:
        """Change the cycle's shape on the resident models, up to the size the engine was started with.

        Raises:
            ValueError: contradicting numbers, requests in flight, or a larger tail than was budgeted.
        """
        self.engine.reconfigure(speculation(steps, topk, draft_tokens))

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_finish: Callable[[int, Completion], None] = lambda index, completion: None,
    ) -> list[Completion]:
        """Continue raw prompts (texts or token ids), in order; on_finish hears of each as it ends.

        Raises:
            ValueError: a prompt that can never run; nothing is generated then.
        """
        texts: list[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
        given = _params_for(params, len(texts))
        requests = [self._request(text, one) for text, one in zip(texts, given, strict=True)]
        return self._run(requests, on_finish)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_finish: Callable[[int, Completion], None] = lambda index, completion: None,
    ) -> list[Completion]:
        """Answer one conversation (a list of messages) or several, through the model's chat template."""
        several = _several(conversations)
        given = _params_for(params, len(several))
        requests = [self._chat_request(each, one) for each, one in zip(several, given, strict=True)]
        return self._run(requests, on_finish)

    def stream(
        self, prompt: str | Sequence[Message], params: SamplingParams | None = None
    ) -> Generator[Delta, None, None]:
        """Answer one raw prompt or one conversation piece by piece; the last piece brings the completion.

        Raises:
            ValueError: the prompt can never run, or another stream is still open.
        """
        params = params or SamplingParams()
        pending = self._request(prompt, params) if isinstance(prompt, str) else self._chat_request(prompt, params)
        self._refuse_while_busy()
        self._add(pending)
        shown = StopMatcher(self.tokenizer, params.stop)  # one step may bring several pieces; the engine's is past all
        try:
            while self.engine.busy:
                for news in self.engine.step():
                    yield _delta(news, shown, pending)
        finally:
            self.engine.abort(pending.request.id)

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

    def _request(self, prompt: str | Sequence[int], params: SamplingParams) -> "_Pending":
        if isinstance(prompt, str):
            return self._pending(prompt, self._encode(prompt, add_special_tokens=True), params)
        if isinstance(prompt, int):
            raise ValueError("a list of token ids is one prompt; give a list of prompts: [[...]]")
        self._check_ids(prompt)
        return self._pending(self.tokenizer.decode(list(prompt), skip_special_tokens=False), list(prompt), params)

    def _chat_request(self, messages: Sequence[Message], params: SamplingParams) -> "_Pending":
        text = self.render(messages)
        return self._pending(text, self._encode(text, add_special_tokens=False), params)

    def _pending(self, text: str, ids: list[int], params: SamplingParams) -> "_Pending":
        seed = self._seeds.randrange(MAX_SEED) if params.seed is None else params.seed
        request = Request(id=self._num_requests, prompt=tuple(ids), params=params, seed=seed)
        self._num_requests += 1
        return _Pending(text, request, StopMatcher(self.tokenizer, params.stop))

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a text; a tokenizer may know tokens that the model has no embedding for."""
        ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        self._check_ids(ids)
        return ids

    def _check_ids(self, ids: Sequence[int]) -> None:
        bad = next((token for token in ids if not 0 <= token < self.model_config.vocab_size), None)
        if bad is not None:
            raise ValueError(f"token id {bad} is outside the model's vocabulary of {self.model_config.vocab_size}")

    def _refuse_while_busy(self) -> None:
        if self.engine.busy:
            raise ValueError("another answer is still being streamed; read that stream to its end, or close it")

    def _add(self, pending: "_Pending") -> None:
        params = pending.request.params
        eos = frozenset() if params.ignore_eos else self.tokenizer.eos_ids | set(self.model_config.eos_ids)
        ending = Ending(stop_ids=eos | set(params.stop_ids), matcher=pending.matcher)
        self.engine.add(pending.request, ending)

    def _run(self, pending: Sequence["_Pending"], on_finish: Callable[[int, Completion], None]) -> list[Completion]:
        places = {each.request.id: place for place, each in enumerate(pending)}
        done: dict[int, Completion] = {}
        self._refuse_while_busy()
        try:
            for place, each in enumerate(pending):
                with _naming(place, len(pending)):
                    self._add(each)
            while self.engine.busy:
                for news in self.engine.step():
                    if news.answer is not None:
                        place = places[news.request]
                        done[place] = _completion(news.answer, pending[place])
                        on_finish(place, done[place])
        finally:
            for each in pending:
                self.engine.abort(each.request.id)
        return [done[place] for place in range(len(pending))]


class _Pending:
    """A request with the text that belongs to it."""

    __slots__ = ("matcher", "request", "text")

    def __init__(self, text: str, request: Request, matcher: StopMatcher) -> None:
        self.text, self.request, self.matcher = text, request, matcher


def _completion(answer: Answer, pending: _Pending) -> Completion:
    return Completion(
        prompt=pending.text,
        text=pending.matcher.text,
        token_ids=answer.tokens,
        finish_reason=answer.finish_reason.value,
        num_prompt_tokens=answer.num_prompt,
        seed=answer.seed,
        runs=answer.runs,
        statistics=answer.statistics,
        prefill_s=answer.prefill_s,
        decode_s=answer.decode_s,
    )


def _delta(news: Progress, shown: StopMatcher, pending: _Pending) -> Delta:
    for token in news.new_tokens:
        shown.push(token)
    text = shown.finish() if news.answer else shown.take()
    completion = _completion(news.answer, pending) if news.answer else None
    return Delta(text=text, token_ids=news.new_tokens, accepted=news.accepted, completion=completion)


def _several(conversations: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation, or several, as a list of them."""
    if all(isinstance(each, Mapping) for each in conversations):
        return [cast("Sequence[Message]", conversations)]
    return list(cast("Sequence[Sequence[Message]]", conversations))


@contextmanager
def _naming(place: int, count: int) -> Iterator[None]:
    """Say which of several prompts a refusal is about, counted from 1."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"prompt {place + 1} of {count}: {error}" if count > 1 else str(error)) from None


def _params_for(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise ValueError(f"{len(params)} sampling parameters came for {count} prompts; give one, or one for each")
    return list(params)


def _convention(name: str) -> CaptureConvention:
    try:
        return CaptureConvention(name)
    except ValueError:
        choices = ", ".join(each.value for each in CaptureConvention)
        raise ValueError(f"capture convention {name!r} is unknown; use {choices}") from None
