"""The host loop: add, step, abort. It sees token ids and integers only."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from slipstream.cache.pages import Pages
from slipstream.config.engine import EngineConfig
from slipstream.config.speculation import PLAIN, Speculation, shrink
from slipstream.engine.executor import Executor
from slipstream.engine.state import Running
from slipstream.flow.batch import Batch
from slipstream.flow.output import FinishReason, Progress, Run
from slipstream.flow.request import Prefill, Request, RequestId
from slipstream.flow.span import PageSpan
from slipstream.schedule.scheduler import Scheduler, entries_needed
from slipstream.telemetry.clock import Clock, Stopwatch
from slipstream.verify.finish import Matcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What ends an answer besides its length."""

    stop_ids: Collection[int]
    matcher: Matcher


class Engine:
    """Requests in, runs of tokens out."""

    def __init__(self, config: EngineConfig, executor: Executor, *, clock: Clock) -> None:
        self.config, self.executor, self.clock = config, executor, clock
        self.speculation = config.speculation if executor.has_draft else PLAIN
        executor.check(self.speculation)
        self.pages = Pages(config.num_pages, config.page_size)
        self.scheduler = Scheduler(config)
        self.running: dict[RequestId, Running] = {}
        self.num_cycles = 0
        self._endings: dict[RequestId, Ending] = {}

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.running or self.scheduler.waiting)

    def reconfigure(self, speculation: Speculation) -> None:
        """Change the cycle's shape between requests; pages are granted for the new shape from now on.

        Raises:
            ValueError: requests are in flight, or there is no draft to grow it.
        """
        self.refuse_while_busy()
        self.executor.check(speculation)
        self.config = replace(self.config, speculation=speculation)
        self.scheduler = Scheduler(self.config)
        self.speculation = speculation

    def refuse_while_busy(self) -> None:
        """Raises ValueError while requests wait or run."""
        if self.busy:
            raise ValueError("requests are in flight; reconfigure when the engine is idle")

    def add(self, request: Request, ending: Ending) -> None:
        """Queue a request.

        Raises:
            ValueError: it could never run.
        """
        self.scheduler.add(request)
        self._endings[request.id] = ending

    def abort(self, request_id: RequestId) -> None:
        """Drop a request wherever it is; its pages are free at once, since no cycle is in flight between steps."""
        self._endings.pop(request_id, None)
        if not self.scheduler.withdraw(request_id) and request_id in self.running:
            self.running[request_id].reason = FinishReason.ABORT
            self._retire(self.running[request_id])

    def step(self) -> list[Progress]:
        """Admit what fits, then run one cycle; news of every request that moved."""
        news = self.prefill_all()
        rows = [state.row(self.speculation.steps) for state in self.running.values()]
        if rows:
            deepest = max(row.depth_limit for row in rows)
            batch = Batch(cycle=self.num_cycles, rows=tuple(rows), speculation=shrink(self.speculation, deepest))
            self.num_cycles += 1
            with Stopwatch(self.clock) as watch:
                runs = self.executor.step(batch)
            news += [self._take(run, watch.seconds) for run in runs]
        return news

    def prefill_all(self) -> list[Progress]:
        """Admit what fits, and no more than that; news of every request that entered."""
        return [self._admit(request, pages) for request, pages in self._admissible()]

    def _admissible(self) -> Iterator[tuple[Request, tuple[int, ...]]]:
        """Take from the line what the batch and the pages can hold.

        One at a time: pages of a request that is not running yet would be nobody's if the prefill before it failed.
        """
        line = self.scheduler.waiting
        while line and len(self.running) < self.config.max_batch:
            pages = self.pages.grant(entries_needed(line[0], self.config))
            if pages is None:
                return
            yield line.popleft(), pages

    def _admit(self, request: Request, pages: tuple[int, ...]) -> Progress:
        """Prefill a request; its first token comes from the prompt's last row and belongs to no cycle."""
        span, ending = PageSpan(pages=pages, page_size=self.config.page_size), self._endings.pop(request.id)
        state = Running(
            request=request,
            span=span,
            matcher=ending.matcher,
            stop_ids=frozenset(ending.stop_ids),
            max_len=self.config.max_len,
        )
        self.running[request.id] = state
        with Stopwatch(self.clock) as watch:
            first = self.executor.prefill(Prefill(request=request, span=span))
        state.prefill_s = watch.seconds
        return self._news(state, state.take((first,)), accepted=0)

    def _take(self, run: Run, seconds: float) -> Progress:
        """Trim a cycle's run and count it."""
        state = self.running[run.request]
        state.decode_s += seconds
        kept = state.take(run.tokens)
        state.runs.append(len(kept))
        trimmed = len(kept) < len(run.tokens)
        state.statistics.record(kept=len(kept), depth=run.depth, proposed=run.proposed, trimmed=trimmed)
        accepted = len(kept) if trimmed else len(kept) - 1
        return self._news(state, kept, accepted=accepted)

    def _news(self, state: Running, kept: tuple[int, ...], *, accepted: int) -> Progress:
        answer = None
        if state.reason is not None:
            self._retire(state)
            answer = state.answer()
        return Progress(request=state.request.id, new_tokens=kept, accepted=accepted, answer=answer)

    def _retire(self, state: Running) -> None:
        """Free everything a request held."""
        del self.running[state.request.id]
        self.executor.release(state.request.id)
        self.pages.give_back(state.span.pages)
