"""Profile the tiny shape on this CPU, a delay in one of its parts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from slipstream.bench.delays import parse_delays
from slipstream.bench.profile import Profiled, ProfilePlan, Profiler
from slipstream.bench.shapes import full_shape
from slipstream.bench.spans import CycleTimes
from slipstream.config.placement import placements
from slipstream.config.speculation import speculation
from slipstream.engine.executor import RankExecutor
from slipstream.engine.group import open_executor
from slipstream.flow.orders import LoadTarget, PlaceDraft, SetDelay
from slipstream.telemetry.clock import Clock

STEPS, CYCLES, CONTEXT = 2, 8, 24
STAGES = ("extend", "draft 1", "draft 2", "verify", "accept", "host")


def opened(tp: int = 1) -> RankExecutor:
    """The tiny target with random weights."""
    executor = open_executor(tp, torch.device("cpu"))
    executor.order(LoadTarget(config=full_shape("tiny").target, path=None, dtype="float32", max_position=512))
    return executor


def plan(*, tp: int = 1, inject: str | None = None, steps: int = STEPS, cycles: int = CYCLES) -> ProfilePlan:
    """The draft cut over all ranks."""
    full = full_shape("tiny")
    where = next(each for each in placements(tp) if each.ranks == tp)
    return ProfilePlan(
        draft=PlaceDraft(path=None, placement=where, dtype="float32", dummy=full.draft),
        places=(),
        vocab_size=full.target.vocab_size,
        shape=speculation(steps),
        batch=1,
        context=CONTEXT,
        acceptance=(0.0,),
        cycles=cycles,
        rounds=1,
        delays=parse_delays(inject),
    )


def split(executor: RankExecutor, wanted: ProfilePlan) -> Profiled:
    return Profiler(executor, wanted, clock=Clock(), on_run=lambda what: None).split()


def split_delayed(executor: RankExecutor, *, tp: int = 1, us: float) -> Profiled:
    """With a slower wire."""
    executor.order(SetDelay(microseconds=us))
    found = split(executor, plan(tp=tp, cycles=CYCLES // 2))
    executor.order(SetDelay(microseconds=0.0))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """The least of every part over all cycles: whatever else a busy machine does only adds to them."""

    stages_ms: Mapping[str, float]  # without the collectives
    communication_ms: float


def quiet(cycles: list[CycleTimes]) -> Quiet:
    def least(part: Callable[[CycleTimes], float]) -> float:
        return min(part(cycle) for cycle in cycles)

    return Quiet(
        stages_ms={
            label: least(lambda cycle, label=label: cycle.stage_ms(label) - cycle.communication_ms(label))
            for label in STAGES
        },
        communication_ms=least(lambda cycle: sum(call.ms for call in cycle.calls)),
    )
