"""The host loop: add, step, abort. It sees token ids and integers only.

A step lets requests enter, runs one forward of prompt chunks, then one cycle of everything that decodes.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from slipstream.cache.pages import Pages
from slipstream.cache.table import PageTable
from slipstream.config.engine import EngineConfig
from slipstream.config.speculation import PLAIN, Speculation, shrink
from slipstream.engine.costs import CostGauge
from slipstream.engine.executor import Executor
from slipstream.engine.gauge import AcceptanceGauge
from slipstream.engine.state import Running
from slipstream.flow.batch import Batch
from slipstream.flow.output import FinishReason, Progress, Run, Statistics
from slipstream.flow.prefill import Entry, Prefill
from slipstream.flow.request import Request, RequestId
from slipstream.schedule.line import Line
from slipstream.schedule.scheduler import check_request, comfortable, entries_for, next_chunks, victim
from slipstream.telemetry.clock import Clock, Stopwatch
from slipstream.verify.finish import GrammarEnd, Matcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What ends an answer besides its length."""

    stop_ids: Collection[int]
    matcher: Matcher
    grammar: GrammarEnd | None = None  # where the answer follows one


class Engine:
    """Requests in, runs of tokens out."""

    def __init__(self, config: EngineConfig, executor: Executor, *, clock: Clock) -> None:
        self.config, self.executor, self.clock = config, executor, clock
        self.speculation = config.speculation if executor.has_draft else PLAIN
        executor.check(self.speculation)
        self.pages = PageTable(Pages(config.num_pages, config.page_size), max_pinned_pages=config.max_pinned_pages)
        self.line = Line()
        self.running: dict[RequestId, Running] = {}  # in the batch, in the order in which they entered
        self.gauge = AcceptanceGauge(steps=self.speculation.steps)
        self.costs, self.totals = CostGauge(), Statistics()
        self.num_cycles = self.num_preemptions = 0
        self._waiting: dict[RequestId, Running] = {}
        self._num_arrivals = 0
        self._next_check_s = clock.now()

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.running or self._waiting)

    def reconfigure(self, speculation: Speculation) -> None:
        """Change the cycle's shape between requests; pages are granted for the new shape from now on.

        Raises:
            ValueError: requests are in flight, or there is no draft to grow it.
        """
        self.refuse_while_busy()
        self.executor.check(speculation)
        self.config = replace(self.config, speculation=speculation)
        self.speculation = speculation
        self.gauge = AcceptanceGauge(steps=speculation.steps)

    def refuse_while_busy(self) -> None:
        """Raises ValueError while requests wait or run."""
        if self.busy:
            raise ValueError("requests are in flight; reconfigure when the engine is idle")

    def add(self, request: Request, ending: Ending) -> None:
        """Queue a request.

        Raises:
            ValueError: it could never run.
        """
        check_request(request, self.config)
        state = Running(
            request=replace(request, stop_ids=tuple(sorted(ending.stop_ids))),
            context=request.prompt,
            arrival=self._num_arrivals,
            matcher=ending.matcher,
            grammar=ending.grammar,
            stop_ids=frozenset(ending.stop_ids),
            longest=min(request.params.max_tokens, self.config.max_len - len(request.prompt)),
        )
        self._num_arrivals += 1
        self._wait(state)

    def abort(self, request_id: RequestId) -> None:
        """Drop a request wherever it is; its pages are free at once, since no cycle is in flight between steps."""
        if self.line.leave(request_id):
            del self._waiting[request_id]
        elif request_id in self.running:
            self.running[request_id].reason = FinishReason.ABORT
            self._leave(self.running[request_id])

    def step(self) -> list[Progress]:
        """Admit what fits, run a forward of prompts, then one cycle; news of every request that moved."""
        news = self._prefill(self._admit())
        news += self._cycle()
        if not self.busy:
            self._check_pages()
        return news

    def prefill_all(self) -> list[Progress]:
        """Admit what fits and run all of its prompts, without a cycle; news of every request that entered."""
        news, entries = [], self._admit()
        while entries or any(not state.decoding for state in self.running.values()):
            news += self._prefill(entries)
            entries = self._admit()
        return news

    # ------------------------------------------------------------------ entering

    def _admit(self) -> list[Entry]:
        """Take from the line what the batch and the pages can hold; a more important request may displace others."""
        entries: list[Entry] = []
        while (ticket := self.line.first()) is not None:
            state = self._waiting[ticket[2]]
            if len(self.running) >= self.config.max_batch or not self._seat(state):
                worst = self._worst()
                if worst is None or worst.request.priority <= state.request.priority:
                    break
                self._preempt(worst)  # none of those that entered just now: they are as important at least
                continue
            self.line.leave(state.request.id)
            self.running[state.request.id] = self._waiting.pop(state.request.id)
            entries.append(state.entry(self.config.page_size))
        return entries

    def _seat(self, state: Running) -> bool:
        """Give a waiting request pages, with headroom if there is plenty; whether there were enough."""
        context, config = state.context, self.config
        needed = entries_for(len(context) + 1, config)
        reusable = context if config.prefix_cache and not state.scores_prompt else ()
        grant = self.pages.take(reusable, comfortable(needed, state.request, config))
        grant = grant or self.pages.take(reusable, needed)
        if grant is None:
            return False
        state.pages, state.num_run, state.num_context = grant.pages, grant.num_cached_entries, len(context)
        if not state.preemptions:
            state.num_cached = grant.num_cached_entries
        return True

    def _prefill(self, entries: Sequence[Entry]) -> list[Progress]:
        """Run one forward of chunks; first tokens come from the contexts' last rows and belong to no cycle."""
        entering = sorted((state for state in self.running.values() if not state.decoding), key=lambda s: s.ticket)
        chunks = next_chunks(
            ((each.request.id, each.num_run, each.num_context) for each in entering), self.config.prefill_chunk
        )
        if not chunks:
            return []
        with Stopwatch(self.clock) as watch:
            firsts = self.executor.prefill(Prefill(entries=tuple(entries), chunks=chunks))
        self.costs.prefill_s += watch.seconds
        news = []
        for chunk, first in zip(chunks, firsts, strict=True):
            state = self.running[chunk.request]
            state.num_run = chunk.stop
            state.prefill_s += watch.seconds
            if state.decoding and self.config.prefix_cache:
                self.pages.publish(state.context, state.pages, state.num_run)
            if first is not None:
                state.prompt_logprobs.extend(first.prompt_logprobs)
            if first is not None and first.tokens:
                news.append(self._news(state, state.take(first), accepted=0))
        return news

    # ------------------------------------------------------------------ cycles

    def _cycle(self) -> list[Progress]:
        """Run one cycle of everything that decodes."""
        grown = self._grow()
        states = [state for state in self.running.values() if state.decoding]
        if not states:
            return []
        limits = [state.depth_limit(self.speculation.steps, self.config.draft_max_len) for state in states]
        batch = Batch(
            cycle=self.num_cycles,
            rows=tuple(state.row(limit) for state, limit in zip(states, limits, strict=True)),
            speculation=shrink(self.speculation, max(limits)),
            grown=tuple((request, pages) for request, pages in grown.items() if request in self.running),
        )
        self.num_cycles += 1
        with Stopwatch(self.clock) as watch:
            runs = self.executor.step(batch)
        self.costs.see(len(states), batch.speculation, watch.seconds)
        for run, limit in zip(runs, limits, strict=True):
            self.gauge.see(emitted=len(run.tokens), depth=limit)
        return [self._take(run, watch.seconds) for run in runs]

    def _grow(self) -> dict[RequestId, tuple[int, ...]]:
        """Pages for what the next cycle may write, the most important requests first; some may have to make room."""
        grown: dict[RequestId, tuple[int, ...]] = {}
        page_size, beyond = self.config.page_size, entries_for(0, self.config)
        short = [
            state
            for state in self.running.values()
            if state.decoding and state.num_tokens + beyond > len(state.pages) * page_size
        ]
        for state in sorted(short, key=lambda each: each.ticket):
            needed = state.num_tokens + beyond
            while state.request.id in self.running and needed > len(state.pages) * page_size:
                pages = self.pages.grow(state.pages, comfortable(needed, state.request, self.config))
                pages = pages or self.pages.grow(state.pages, needed)
                if pages is None:
                    worst = self._worst()
                    assert worst is not None, "the request itself is in the batch"
                    self._preempt(worst)
                    continue
                state.pages += pages
                grown[state.request.id] = pages
        return grown

    def _take(self, run: Run, seconds: float) -> Progress:
        """Trim a cycle's run and count it."""
        state = self.running[run.request]
        state.decode_s += seconds
        kept = state.take(run)
        state.runs.append(len(kept))
        state.num_run = state.num_context = state.num_tokens - 1
        trimmed = len(kept) < len(run.tokens)
        for statistics in (state.statistics, self.totals):
            statistics.record(kept=len(kept), depth=run.depth, proposed=run.proposed, trimmed=trimmed)
        accepted = len(kept) if trimmed else len(kept) - 1
        return self._news(state, kept, accepted=accepted)

    # ------------------------------------------------------------------ leaving

    def _worst(self) -> Running | None:
        """Who makes room next."""
        if not self.running:
            return None
        return self.running[victim([state.ticket for state in self.running.values()])]

    def _preempt(self, state: Running) -> None:
        """Send a request back into the line; it is recomputed when there is room again."""
        self._leave(state)
        state.preemptions += 1
        self.num_preemptions += 1
        state.context = state.request.prompt + tuple(state.tokens[:-1])
        self._wait(state)

    def _wait(self, state: Running) -> None:
        self._waiting[state.request.id] = state
        self.line.join(state.ticket)

    def _news(self, state: Running, kept: tuple[int, ...], *, accepted: int) -> Progress:
        if state.reason is not None:
            self._leave(state)
        return state.news(kept, accepted=accepted)

    def _leave(self, state: Running) -> None:
        """Free everything a request held; what a finished one computed may be found by those that go on from it."""
        del self.running[state.request.id]
        pages, state.pages = state.pages, ()
        complete = self._num_reusable(state)
        try:
            self.executor.release(state.request.id, complete=complete)
            if complete:
                self.pages.publish(state.request.prompt + tuple(state.tokens), pages, complete)
        finally:
            self.pages.release(pages)

    def _num_reusable(self, state: Running) -> int:
        """Entries on full pages that hold a part of a finished answer; the last token has none yet."""
        if not self.config.prefix_cache or state.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return 0
        num_known, num_written = (
            count // self.config.page_size * self.config.page_size
            for count in (len(state.request.prompt), state.num_tokens - 1)
        )
        return num_written if num_written > num_known else 0

    def _check_pages(self) -> None:
        """Nobody holds a page now. Every page is looked at, but for at most a hundredth of the time."""
        num_free, num_held = self.pages.num_free, self.pages.num_pinned
        assert num_free + num_held == self.config.num_pages - 1, "requests are gone but their pages are not"
        if self.clock.now() < self._next_check_s:
            return
        with Stopwatch(self.clock) as watch:
            self.pages.check([])
        self._next_check_s = self.clock.now() + 100 * watch.seconds
