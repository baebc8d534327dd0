"""Real answers to prompts, so many at a time, with one shape of cycle: accept length and speed, prefill excluded."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from slipstream.config.engine import EngineConfig
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation
from slipstream.engine.engine import Ending, Engine
from slipstream.engine.executor import Ranks
from slipstream.flow.orders import MakePools
from slipstream.flow.output import Statistics
from slipstream.flow.request import Request
from slipstream.telemetry.clock import Clock

Prompt = tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class RealRun:
    """What a run gave."""

    batch: int  # requests that ran together
    statistics: Statistics = field(default_factory=Statistics)
    decode_s: float = 0.0  # summed over requests: seconds of the cycles that each took part in

    @property
    def tokens_per_s(self) -> float:
        """Of all requests that run together."""
        return self.batch * self.statistics.emitted / self.decode_s if self.decode_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is answered."""

    prompts: tuple[Prompt, ...]
    params: SamplingParams
    stop_ids: frozenset[int]
    seed: int = 0  # prompt i is drawn with seed + i

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(map(len, self.prompts))

    def part(self, start: int, count: int) -> "Task":
        """So many prompts from a place on, from the first again after the last."""
        chosen = tuple(self.prompts[(start + index) % len(self.prompts)] for index in range(count))
        return replace(self, prompts=chosen, seed=self.seed + start)


class NoStops:
    """Nothing but ids ends these answers."""

    def push(self, token_id: int) -> bool:
        """Never."""
        return False


def config_for(shape: Speculation, task: Task, *, batch: int) -> EngineConfig:
    """An engine of this shape whose pools just hold a batch of the longest prompts and answers."""
    longest = task.longest + task.params.max_tokens + 1
    config = EngineConfig(speculation=shape, max_len=longest, max_batch=batch, prefix_cache=False)
    entries = batch * (longest + shape.num_tail_entries + 2 * config.page_size)
    return replace(config, num_pages=entries // config.page_size + 2)


def answer(
    executor: Ranks,
    shape: Speculation,
    task: Task,
    *,
    batch: int,
    clock: Clock,
    watch: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> RealRun:
    """Answer all prompts, `batch` at a time. watch: entered once the pools are there, left after the last answer.

    Raises:
        ValueError: the pools do not fit, or the draft cannot grow the shape.
    """
    config = config_for(shape, task, batch=min(batch, len(task.prompts)))
    executor.order(MakePools(config=config))
    engine, found = Engine(config, executor, clock=clock), RealRun(batch=config.max_batch)
    for index, prompt in enumerate(task.prompts):
        request = Request(id=index, prompt=prompt, params=task.params, seed=task.seed + index)
        engine.add(request, Ending(stop_ids=task.stop_ids, matcher=NoStops()))
    with watch():
        while engine.busy:
            for news in engine.step():
                if news.answer is not None:
                    found.statistics.add(news.answer.statistics)
                    found.decode_s += news.answer.decode_s
    return found
