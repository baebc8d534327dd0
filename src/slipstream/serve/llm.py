"""The Python door: `from slipstream import LLM`."""

import random
from collections.abc import Callable, Generator, Sequence
from weakref import finalize

from slipstream.config.draft import AS_DECLARED, DraftWiring
from slipstream.config.placement import Placement
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation
from slipstream.engine.engine import Engine
from slipstream.engine.executor import RankExecutor
from slipstream.engine.group import follow_if_launched, open_ranks
from slipstream.flow.orders import RankShare
from slipstream.runner.load import read_model_config
from slipstream.runner.worker import Worker
from slipstream.serve.budget import Budget
from slipstream.serve.completion import Completion, Delta
from slipstream.serve.manner import Manner, manners_for
from slipstream.serve.pending import Message, Requests, matcher_for, params_for, several
from slipstream.serve.pins import ids_of, keep_pins, pin_prompt
from slipstream.serve.running import run_in_pieces, run_to_end
from slipstream.serve.settle import (
    changed,
    settle_delay,
    settle_device,
    settle_draft,
    settle_draft_path,
    settle_draft_tp,
    settle_dtype,
    settle_engine,
    settle_limits,
    settle_max_len,
    settle_paths,
    settle_speculation,
    settle_target,
    settle_tp,
)
from slipstream.serve.start import Started, Wanted, at_random, check_before_loading, reconfigured, set_delay, start
from slipstream.serve.statistics import EngineStatistics, statistics_of
from slipstream.telemetry.clock import Clock, Stopwatch
from slipstream.text.template import load_template
from slipstream.text.tokenizer import load_tokenizer

MAX_SEED = 2**63


class LLM:
    """A target, its draft and an engine around them.

    model, draft: a directory, a .gguf file, a pulled name or a hub id. draft "auto" takes the shipped draft of the
    default model; None decodes plainly. steps, topk, draft_tokens: see config/speculation.py; a chain of 4 by
    default. device: auto, cpu, cuda, cuda:N. dtype: auto (fp32 on a CPU, bf16 on CUDA), float32, bfloat16, float16;
    draft_dtype: auto is the target's. seed: makes the seeds of requests that bring none reproducible. kv_gib: budget
    of both KV pools on each rank; memory_fraction: of each device, for everything (pass one of the two). on_load is
    told the bytes of every tensor as it is placed. prefix_cache: prompts that begin alike share what was computed.
    pinned_tokens: how much of the cache `pin` may take. draft_max_len: tokens of context beyond which nothing is
    drafted. graph_sizes: batches whose cycles are captured on CUDA, ascending, powers of two if left out; a batch
    beyond the last runs uncaptured, and () captures none. draft_wiring: what is known better than the draft's
    checkpoint (`slipstream doctor` finds it).

    tp: ranks that the target is cut over; as many as a launcher started, else 1. draft_tp: over how many of them the
    draft is cut, `replicated`, or `auto`, which times every placement. inject_allreduce_us delays every collective.
    synthetic_accept_length decrees acceptance, and dummy_weights are random ones of the models' shapes; both for timing
    only. watchdog_s: how long a rank may be silent. executor: spawn (or torchrun's ranks), or ray. on_trial is told of
    each placement before `auto` times it.

    Raises:
        ValueError: anything that does not fit, in one sentence.
        GroupError: a rank died or hung; the group has ended, and only a new LLM helps.
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
        draft_dtype: str = "auto",
        seed: int | None = None,
        max_len: int | None = None,
        max_batch: int = 16,
        kv_gib: float | None = None,
        memory_fraction: float | None = None,
        strict_memory_balance: bool = False,
        capture_convention: str = "auto",
        prefix_cache: bool = True,
        draft_max_len: int | None = None,
        pinned_tokens: int = 0,
        graph_sizes: Sequence[int] | None = None,
        draft_wiring: DraftWiring = AS_DECLARED,
        tp: int | None = None,
        draft_tp: str | int = "auto",
        inject_allreduce_us: float = 0.0,
        synthetic_accept_length: float | None = None,
        dummy_weights: bool = False,
        watchdog_s: float = 30.0,
        executor: str = "spawn",
        on_load: Callable[[int], None] = lambda num_bytes: None,
        on_trial: Callable[[Placement], None] = lambda placement: None,
    ) -> None:
        follow_if_launched()
        with Stopwatch(Clock()) as watch:
            paths = settle_paths(model, draft)
            self.model_config, self.device = read_model_config(paths.model), settle_device(device)
            self.dtype, self.max_len = settle_dtype(dtype, self.device), settle_max_len(max_len, self.model_config)
            self.tp, has_draft = settle_tp(tp), paths.draft is not None
            self.tokenizer, template = load_tokenizer(paths.model), load_template(paths.model)
            self._requests = Requests(self.tokenizer, template, self.model_config, seeds=random.Random(seed))
            wanted = Wanted(
                target=settle_target(paths.model, self.model_config, self.dtype, self.max_len),
                draft=settle_draft(paths.draft, draft_dtype, self.dtype, capture_convention, draft_wiring),
                draft_tp=settle_draft_tp(str(draft_tp), self.tp, has_draft=has_draft),
                config=settle_engine(
                    settle_speculation(steps, topk, draft_tokens, has_draft=has_draft),
                    *(self.max_len, max_batch, synthetic_accept_length, prefix_cache, draft_max_len),
                    *(pinned_tokens, graph_sizes, self.device),
                ),
                budget=Budget(memory_fraction=memory_fraction, kv_gib=kv_gib),
                strict_memory_balance=strict_memory_balance,
                delay_us=settle_delay(inject_allreduce_us, self.tp),
                on_trial=on_trial,
            )
            check_before_loading(wanted, self.tp)
            ranks = open_ranks(executor, self.tp, self.device, limits=settle_limits(watchdog_s), on_tensor=on_load)
            self._started = start(at_random(wanted) if dummy_weights else wanted, ranks, tp=self.tp)
            self._close = finalize(self, ranks.close)
        self.load_s, self.draft_path = watch.seconds, paths.draft

    @property
    def engine(self) -> Engine:
        """The host loop."""
        return self._started.engine

    @property
    def worker(self) -> Worker:
        """This process's rank, at work.

        Raises:
            ValueError: all ranks are in other processes.
        """
        executor = self._started.executor
        if not isinstance(executor, RankExecutor):
            raise ValueError("this process holds no rank: all are Ray actors; use executor='spawn' to look inside one")
        return executor.worker

    @property
    def speculation(self) -> Speculation:
        """The shape of a cycle now."""
        return self.engine.speculation

    @property
    def placement(self) -> Placement | None:
        """Where the draft is; None without one."""
        return self._started.draft.placement if self._started.draft.wanted else None

    @property
    def started(self) -> Started:
        """How the engine came up: what `auto` timed, and what there is to say about memory."""
        return self._started

    @property
    def synthetic_accept_length(self) -> float | None:
        """The decreed accept length: answers are then no answers."""
        return self.engine.config.synthetic_accept_length

    @property
    def statistics(self) -> EngineStatistics:
        """Cycles, acceptance drift, and what the prefix cache spared."""
        return statistics_of(self.engine)

    def shares(self) -> tuple[RankShare, ...]:
        """What every rank holds now: group sizes, shapes of the draft's shards, bytes."""
        return self._started.executor.shares()

    def close(self) -> None:
        """End the other ranks; this LLM cannot be used afterwards."""
        self._close()

    def reconfigure(
        self,
        *,
        steps: int | None = None,
        topk: int | None = None,
        draft_tokens: int | None = None,
        draft: str | None = None,
        draft_tp: str | int | None = None,
        inject_allreduce_us: float | None = None,
    ) -> None:
        """Change the cycle's shape, the draft or its placement beside the resident target; what is left out stays.

        Raises:
            ValueError: contradicting settings, requests in flight, or a draft that does not fit; nothing has changed.
        """
        self.engine.refuse_while_busy()
        shape = (
            self.speculation
            if steps is topk is draft_tokens is None
            else changed(self.speculation, steps, topk, draft_tokens)
        )
        delay_us = None if inject_allreduce_us is None else settle_delay(inject_allreduce_us, self.tp)
        path = self.draft_path if draft is None else settle_draft_path(draft)
        before = self.engine
        self._started = reconfigured(self._started, shape, path, draft_tp, tp=self.tp)
        keep_pins(before, self.engine, self._requests)
        self.draft_path = path
        if delay_us is not None:
            set_delay(self._started.executor, delay_us)

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        steps: int | Sequence[int | None] | None = None,
        on_finish: Callable[[int, Completion], None] = lambda index, completion: None,
    ) -> list[Completion]:
        """Continue raw prompts (texts or token ids), in order; on_finish hears of each as it ends.

        With n, each prompt's answers stand together, by `index`; on_finish is told the place in the list. For all
        prompts or for each: priority (lower runs first) and steps, the most draft steps of a cycle (0 = no
        speculation, None = the engine's); neither changes a token.

        Raises:
            ValueError: a prompt that can never run, or steps that the engine does not draft; nothing is generated.
        """
        texts: list[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
        asked = zip(texts, params_for(params, len(texts)), self._manners(priority, steps, len(texts)), strict=True)
        requests = [each for text, one, manner in asked for each in self._requests.raw(text, one, manner)]
        return run_to_end(self.engine, requests, on_finish)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        steps: int | Sequence[int | None] | None = None,
        on_finish: Callable[[int, Completion], None] = lambda index, completion: None,
    ) -> list[Completion]:
        """Answer one conversation (a list of messages) or several, through the model's chat template; see generate."""
        listed = several(conversations)
        asked = zip(listed, params_for(params, len(listed)), self._manners(priority, steps, len(listed)), strict=True)
        requests = [each for said, one, manner in asked for each in self._requests.chat(said, one, manner)]
        return run_to_end(self.engine, requests, on_finish)

    def stream(
        self, prompt: str | Sequence[Message], params: SamplingParams | None = None, *, steps: int | None = None
    ) -> Generator[Delta, None, None]:
        """Answer one raw prompt or one conversation piece by piece; the last piece brings the completion.

        It has no priority: nothing else runs beside a stream.

        Raises:
            ValueError: the prompt can never run, n is above 1, or another stream is still open.
        """
        params = params or SamplingParams()
        if params.n > 1:
            raise ValueError(f"a stream is one answer, not {params.n}; leave n out, or use generate or chat")
        made, (manner,) = self._requests, self._manners(0, steps, 1)
        raw = isinstance(prompt, str)
        (pending,) = made.raw(prompt, params, manner) if raw else made.chat(prompt, params, manner)
        yield from run_in_pieces(self.engine, pending, matcher_for(self.tokenizer, params))

    def pin(self, prompt: str | Sequence[Message] | Sequence[int]) -> int:
        """Run a prompt (a system prompt, say) and keep its full pages cached until `unpin`; how many tokens that is.

        Raises:
            ValueError: pinned_tokens is too small for it, the prompt too short to fill a page, or a stream is open.
        """
        return pin_prompt(self.engine, self._requests, prompt)

    def unpin(self, prompt: str | Sequence[Message] | Sequence[int]) -> None:
        """Let a prompt be evicted again; ValueError where it is not pinned."""
        self.engine.pages.unpin(ids_of(self._requests, prompt))

    def render(self, messages: Sequence[Message]) -> str:
        """The text that a conversation becomes.

        Raises:
            ValueError: the model has no chat template, or it refuses the messages.
        """
        return self._requests.render(messages)

    def _manners(
        self, priority: int | Sequence[int], steps: int | Sequence[int | None] | None, count: int
    ) -> list[Manner]:
        return manners_for(priority, steps, count=count, most_steps=self.engine.config.speculation.steps)
