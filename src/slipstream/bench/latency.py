"""Plain steps and cycles over numbers of steps, batches and contexts, beside the bytes that they must read.

Acceptance is decreed, by position, so that cost is measured apart from it. Plain steps run without a draft, in the same
process and settings, before the cycles of every round.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import quantiles
from typing import Any

from slipstream.bench.baseline import cycle_ratio, fingerprint
from slipstream.bench.latency_bytes import CycleBytes, cycle_bytes
from slipstream.bench.latency_rates import Rates
from slipstream.bench.placement import accept_length
from slipstream.config.engine import EngineConfig
from slipstream.config.speculation import speculation
from slipstream.engine.executor import RankExecutor
from slipstream.engine.placement import time_cycles
from slipstream.flow.orders import PlaceDraft
from slipstream.telemetry.clock import Clock

WARM_UP = 6  # cycles; a capture happens in the first
FREE_SHARE = 0.9  # of the free memory that KV entries may take: the rest is workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySweep:
    """What is timed."""

    draft: PlaceDraft
    vocab_size: int
    steps: tuple[int, ...]  # plain decoding, 0, is always timed
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    acceptance: tuple[float, ...]  # decreed, by position; the last holds for all beyond
    cycles: int  # of each point and round
    rounds: int  # over all K of a batch and context, so that a drift meets each

    @property
    def num_points(self) -> int:
        """How many times are taken, all rounds together."""
        return len({0, *self.steps}) * len(self.batches) * len(self.contexts) * self.rounds


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LatencyPoint:
    """One cell; its order is the table's."""

    context: int
    batch: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What a cell took."""

    point: LatencyPoint
    accept_length: float
    cycle_ms: float  # median
    p90_ms: float
    spread_ms: float  # between the quartiles
    num_cycles: int
    num_bytes: CycleBytes


@dataclass(slots=True, kw_only=True)
class LatencyFound:
    """Everything measured."""

    timed: list[Timed]
    left_out: list[str] = field(default_factory=list)  # sentences: what did not fit


def measure(
    executor: RankExecutor, sweep: LatencySweep, *, clock: Clock, on_point: Callable[[str], None]
) -> LatencyFound:
    """Time every cell; the target is loaded already. on_point: told what was timed."""
    samples: dict[LatencyPoint, list[float]] = defaultdict(list)
    counted: dict[LatencyPoint, CycleBytes] = {}
    left_out: list[str] = []
    drafting = tuple(sorted({each for each in sweep.steps if each}))
    for context in sweep.contexts:
        for batch in sweep.batches:
            obstacle = _obstacle(executor, sweep, batch=batch, context=context)
            if obstacle is not None:
                left_out.append(obstacle)
                continue
            for _ in range(sweep.rounds):
                for order, group in ((replace(sweep.draft, path=None, dummy=None), (0,)), (sweep.draft, drafting)):
                    if group:
                        executor.order(order)
                    for steps in group:
                        point = LatencyPoint(context=context, batch=batch, steps=steps)
                        samples[point] += time_point(executor, sweep, point, clock=clock)
                        counted[point] = _bytes_of(executor, sweep, point)
                        on_point(f"K {steps}, bs {batch}, context {context}")
    timed = [_timed(point, times, counted[point], sweep) for point, times in samples.items()]
    return LatencyFound(timed=sorted(timed, key=lambda each: each.point), left_out=left_out)


def config_of(sweep: LatencySweep, steps: int) -> EngineConfig:
    """An engine whose chain of so many steps is accepted as decreed."""
    decreed = accept_length(steps, sweep.acceptance) if steps else None
    return EngineConfig(speculation=speculation(steps), max_len=2, synthetic_accept_length=decreed)


def time_point(executor: RankExecutor, sweep: LatencySweep, point: LatencyPoint, *, clock: Clock) -> list[float]:
    """Seconds of each cycle of one round."""
    times = time_cycles(
        executor,
        config_of(sweep, point.steps),
        vocab_size=sweep.vocab_size,
        clock=clock,
        cycles=WARM_UP + sweep.cycles,
        batch=point.batch,
        num_prompt=point.context,
    )
    return times[WARM_UP:]


def longest(sweep: LatencySweep, context: int) -> int:
    """Entries that a request may come to, prompt and answer."""
    return context + (WARM_UP + sweep.cycles + 2) * (max(sweep.steps, default=0) + 1)


def _obstacle(executor: RankExecutor, sweep: LatencySweep, *, batch: int, context: int) -> str | None:
    """Why a batch and context cannot run: too little memory on some rank."""
    executor.order(sweep.draft)  # an entry is of both models
    entries = batch * longest(sweep, context)
    for share in executor.shares():
        needed, free = entries * share.entry_bytes, FREE_SHARE * share.free_bytes
        if needed > free:
            return (
                f"bs {batch}, context {context} left out: its KV entries take {needed / 1e9:.1f} GB of"
                f" {share.free_bytes / 1e9:.1f} GB free on rank {share.rank}; raise --tp, or choose less"
            )
    return None


def _bytes_of(executor: RankExecutor, sweep: LatencySweep, point: LatencyPoint) -> CycleBytes:
    """What rank 0 reads half-way through the timed cycles."""
    worker = executor.worker
    grown = accept_length(point.steps, sweep.acceptance) * (WARM_UP + sweep.cycles / 2)
    draft = None if worker.drafter is None else worker.drafter.draft.model
    entries = point.context + grown
    return cycle_bytes(worker.target, draft, steps=point.steps, batch=point.batch, num_entries=entries)


def _timed(point: LatencyPoint, seconds: list[float], counted: CycleBytes, sweep: LatencySweep) -> Timed:
    low, middle, high = quantiles(seconds, n=4)
    return Timed(
        point=point,
        accept_length=accept_length(point.steps, sweep.acceptance),
        cycle_ms=middle * 1e3,
        p90_ms=quantiles(seconds, n=10)[-1] * 1e3,
        spread_ms=(high - low) * 1e3,
        num_cycles=len(seconds),
        num_bytes=counted,
    )


def as_rows(
    found: LatencyFound, rates: Rates, settings: dict[str, Any], *, draft: str, placement: str
) -> list[dict[str, Any]]:
    """Every cell under its names, the plain step of the same batch and context beside it."""
    mark = fingerprint(settings)
    rows = [
        {
            "bench": "latency",
            "draft": draft if each.point.steps else None,
            "draft_placement": placement if each.point.steps else None,
            "fingerprint": mark,
            "settings": settings,
            **_numbers(each, rates),
        }
        for each in found.timed
    ]
    plain = {(row["batch"], row["context"]): row for row in rows if row["steps"] == 0}
    for row in rows:
        beside = plain[row["batch"], row["context"]]
        ratio = cycle_ratio(row, beside)
        row |= {"plain_step_ms": beside["cycle_ms"], "cycle_ratio": ratio, "break_even_accept_length": ratio}
    return rows


def _numbers(each: Timed, rates: Rates) -> dict[str, Any]:
    total, floor_ms = each.num_bytes.total, each.num_bytes.total / rates.read * 1e3
    return {
        "steps": each.point.steps,
        "batch": each.point.batch,
        "context": each.point.context,
        "cycle_ms": each.cycle_ms,
        "cycle_p90_ms": each.p90_ms,
        "cycle_spread_ms": each.spread_ms,
        "num_cycles": each.num_cycles,
        "decreed_accept_length": each.accept_length,
        "target_weight_bytes": each.num_bytes.target_weights,
        "target_kv_bytes": each.num_bytes.target_kv,
        "draft_weight_bytes": each.num_bytes.draft_weights,
        "draft_kv_bytes": each.num_bytes.draft_kv,
        "cycle_bytes": total,
        "tb_per_s": total / each.cycle_ms / 1e9,
        "floor_ms": floor_ms,
        "share_of_floor": floor_ms / each.cycle_ms,
        "read_tb_per_s": rates.read / 1e12,
        "copy_tb_per_s": rates.copy / 1e12,
    }


def compare(rows: list[dict[str, Any]], baseline: dict[tuple[Any, ...], Any], point_of: Callable[..., Any]) -> int:
    """Put the baseline's times beside ours where it has the same point; how many it has."""
    num_found = 0
    for row in rows:
        theirs = baseline.get(point_of(row))
        row["baseline_cycle_ms"] = None if theirs is None else theirs["cycle_ms"]
        row["speedup_over_baseline"] = None if theirs is None else theirs["cycle_ms"] / row["cycle_ms"]
        num_found += theirs is not None
    return num_found
