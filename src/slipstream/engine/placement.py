"""`--draft-tp auto`: time a few cycles under every placement and keep the fastest that fits.

Which placement wins depends on the link, the batch and the draft's size, so it is measured (design, decision 4).
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slipstream.config.engine import EngineConfig
from slipstream.config.placement import Placement, placements
from slipstream.config.sampling import SamplingParams
from slipstream.engine.engine import Ending, Engine
from slipstream.engine.executor import Ranks
from slipstream.flow.orders import MakePools, PlaceDraft
from slipstream.flow.request import Request
from slipstream.telemetry.clock import Clock, Stopwatch

NUM_PROMPT = 64
WARM_UP, MEASURED = 4, 16  # cycles
NOISE = 0.03  # placements this close are tied


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one placement takes."""

    placement: Placement
    cycle_s: float  # median
    spread_s: float  # between the quartiles
    obstacle: str = ""  # why it cannot be used; its times are 0 then


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The placement that was kept, and beside what."""

    placement: Placement
    trials: tuple[Trial, ...]
    tied: bool  # another one was as fast within the noise; the smaller was kept


class _NoStops:
    def push(self, token_id: int) -> bool:
        return False


def choose_placement(
    executor: Ranks,
    order: PlaceDraft,
    config: EngineConfig,
    *,
    vocab_size: int,
    clock: Clock,
    tp: int,
    on_trial: Callable[[Placement], None] = lambda placement: None,
) -> Choice:
    """Try every placement beside a target of `tp` ranks; the draft is left wherever it was tried last.

    on_trial is told of each before it is timed.

    Raises:
        ValueError: none can be used; the reason of the first.
    """
    trials = []
    for each in placements(tp):
        on_trial(each)
        placed = replace(order, placement=each)
        trials.append(_attempt(executor, placed, config, vocab_size=vocab_size, clock=clock))
    return best_of(trials)


def best_of(trials: Sequence[Trial]) -> Choice:
    """The fastest; among those within the noise of it the smallest, which stands first.

    Raises:
        ValueError: no placement can be used.
    """
    usable = [trial for trial in trials if not trial.obstacle]
    if not usable:
        raise ValueError(trials[0].obstacle)
    fastest = min(trial.cycle_s for trial in usable)
    close = [trial for trial in usable if trial.cycle_s <= fastest * (1 + NOISE)]
    return Choice(placement=close[0].placement, trials=tuple(trials), tied=len(close) > 1)


def _attempt(executor: Ranks, order: PlaceDraft, config: EngineConfig, *, vocab_size: int, clock: Clock) -> Trial:
    try:
        executor.order(order)
        times = time_cycles(executor, config, vocab_size=vocab_size, clock=clock, cycles=WARM_UP + MEASURED)[WARM_UP:]
    except ValueError as error:
        return Trial(placement=order.placement, cycle_s=0, spread_s=0, obstacle=str(error))
    low, middle, high = statistics.quantiles(times, n=4)
    return Trial(placement=order.placement, cycle_s=middle, spread_s=high - low)


def time_cycles(
    executor: Ranks,
    config: EngineConfig,
    *,
    vocab_size: int,
    clock: Clock,
    cycles: int,
    batch: int = 1,
    num_prompt: int = NUM_PROMPT,
    on_cycle: Callable[[], None] = lambda: None,
) -> list[float]:
    """Seconds of each of so many cycles over `batch` requests of made-up tokens, on pools of their size."""
    longest = num_prompt + (cycles + 1) * (config.speculation.steps + 1) + 1
    entries = batch * (longest + config.speculation.num_tail_entries + 2 * config.page_size)
    small = replace(config, max_len=longest, max_batch=batch, num_pages=entries // config.page_size + 2)
    executor.order(MakePools(config=small))
    engine, times = Engine(small, executor, clock=clock), []
    for index in range(batch):
        prompt = tuple((7919 * (place + 1) + 104729 * index) % vocab_size for place in range(num_prompt))
        params = SamplingParams(max_tokens=longest - num_prompt, ignore_eos=True)
        engine.add(Request(id=index, prompt=prompt, params=params, seed=index), Ending(stop_ids=(), matcher=_NoStops()))
    engine.prefill_all()
    while len(times) < cycles:
        with Stopwatch(clock) as watch:
            engine.step()
        times.append(watch.seconds)
        on_cycle()
    for index in range(batch):
        engine.abort(index)
    return times
