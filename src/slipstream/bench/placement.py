"""Time cycles over every placement of the draft, number of steps, batch and injected delay, on one group of ranks.

The accept length is decreed, so that every number of steps gets the acceptance it would have, whatever the weights are.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import quantiles

import torch
import torch.nn.functional as F

from slipstream.bench.laps import Laps
from slipstream.config.engine import EngineConfig
from slipstream.config.placement import Placement
from slipstream.config.speculation import speculation
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.engine.executor import RankExecutor
from slipstream.engine.placement import time_cycles
from slipstream.flow.orders import PlaceDraft, SetDelay
from slipstream.layers.linear import Linear
from slipstream.parallel.choose import AllReducePath
from slipstream.parallel.instrument import Ledger, LedgerRow
from slipstream.parallel.timing import time_calls
from slipstream.telemetry.clock import Clock

NUM_PROMPT = 128
WARM_UP = 4  # cycles; a capture happens in the first
COUNTED = 2  # cycles to count collectives in, uncaptured: the second is taken
READ_BYTES = {"cuda": 256 << 20, "cpu": 16 << 20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is tried."""

    draft: PlaceDraft
    vocab_size: int
    steps: tuple[int, ...]
    placements: tuple[Placement, ...]
    inject_us: tuple[float, ...]
    batches: tuple[int, ...]
    acceptance: tuple[float, ...]  # by position
    cycles: int  # of each point and round
    rounds: int  # over everything, so that a drift meets every point

    def places(self) -> tuple[Placement | None, ...]:
        """Plain decoding first, without a draft."""
        plain = (None,) if 0 in self.steps else ()
        return (*plain, *(self.placements if any(self.steps) else ()))

    def steps_at(self, place: Placement | None) -> tuple[int, ...]:
        """What is drafted there."""
        return (0,) if place is None else tuple(steps for steps in self.steps if steps)

    @property
    def num_points(self) -> int:
        """How many times are taken, all rounds together."""
        shapes = sum(len(self.steps_at(place)) for place in self.places())
        return shapes * len(self.batches) * len(self.inject_us) * self.rounds


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Case:
    """What runs, whatever the wire and the batch are."""

    place: str  # a placement, or "plain"
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a case's cycle carries, by count."""

    collectives: tuple[LedgerRow, ...]  # at batch 1
    weight_bytes: int  # of the draft that rank 0 reads

    @property
    def num_collectives(self) -> int:
        """All of a cycle's."""
        return sum(row.count for row in self.collectives)

    @property
    def num_drafting(self) -> int:
        """Those that a plain step does not have: the draft's own, and the hand-round of the chain."""
        return sum(row.count for row in self.collectives if row.role == "draft" or row.name == "tree")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One cell of the table."""

    case: Case
    batch: int
    inject_us: float
    cycle_ms: float  # median, wall clock of rank 0
    spread_ms: float  # between the quartiles
    draft_ms: float  # median, from the cycle's first mark until it verifies, on rank 0's device
    accept_length: float  # decreed
    num_cycles: int

    @property
    def tokens_per_s(self) -> float:
        """Of all requests together."""
        return self.batch * self.accept_length / self.cycle_ms * 1e3


@dataclass(slots=True, kw_only=True)
class Found:
    """Everything measured."""

    points: list[Point]
    loads: dict[Case, Load]
    bytes_per_s: float  # reading weights for one row, on rank 0
    all_reduce_us: tuple[tuple[int, float], ...]  # bytes and the chosen way's latency; empty where none was chosen
    backend_us: float  # of the backend's own smallest all-reduce, which stands for a gather or broadcast; 0 unknown


@dataclass(slots=True)
class _Samples:
    cycles_s: list[float] = field(default_factory=list)
    drafts_ms: list[float] = field(default_factory=list)


def accept_length(steps: int, acceptance: Sequence[float]) -> float:
    """Of a chain, from acceptance by position; the last one holds for all that follow."""
    by_position = [acceptance[min(position, len(acceptance) - 1)] for position in range(steps)]
    return 1 + sum(math.prod(by_position[: depth + 1]) for depth in range(steps))


def measure(executor: RankExecutor, sweep: Sweep, *, clock: Clock, on_point: Callable[[str], None]) -> Found:
    """Time every point; the weights of the target are loaded already, the draft's are placed anew for each placement.

    on_point: told what was timed.
    """
    samples: dict[tuple[Case, int, float], _Samples] = defaultdict(_Samples)
    loads: dict[Case, Load] = {}
    for _ in range(sweep.rounds):
        for place in sweep.places():
            executor.order(_order(sweep, place))
            for steps in sweep.steps_at(place):
                case, config = Case(place=str(place or "plain"), steps=steps), config_of(sweep, steps)
                if case not in loads:
                    loads[case] = _load_of(executor, config, sweep, clock=clock)
                for batch in sweep.batches:
                    for inject_us in sweep.inject_us:
                        executor.order(SetDelay(microseconds=inject_us))
                        _time(executor, config, sweep, batch=batch, clock=clock, into=samples[case, batch, inject_us])
                        on_point(f"{case.place}, K {steps}, bs {batch}, {inject_us:g} us")
                    executor.order(SetDelay(microseconds=0.0))
    points = [_point(case, batch, us, found, sweep) for (case, batch, us), found in samples.items()]
    ways, backend_us = latencies(executor)
    rate = read_rate(executor.rank.device)
    return Found(points=points, loads=loads, bytes_per_s=rate, all_reduce_us=ways, backend_us=backend_us)


def _order(sweep: Sweep, place: Placement | None) -> PlaceDraft:
    if place is None:
        return replace(sweep.draft, path=None, dummy=None)
    return replace(sweep.draft, placement=place)


def config_of(sweep: Sweep, steps: int) -> EngineConfig:
    """An engine whose chain of so many steps is accepted as decreed."""
    decreed = accept_length(steps, sweep.acceptance) if steps else None
    return EngineConfig(speculation=speculation(steps), max_len=NUM_PROMPT * 2, synthetic_accept_length=decreed)


def _load_of(executor: RankExecutor, config: EngineConfig, sweep: Sweep, *, clock: Clock) -> Load:
    """Count an uncaptured cycle's collectives, which are those of a captured one, and the weights it reads."""
    ledger, wire = Ledger(), executor.rank.world.wire

    def on_cycle() -> None:
        wire.ledger = ledger if wire.ledger is None else None  # on after the first cycle, off after the second

    plain = replace(config, graphs=False)
    settings = {"vocab_size": sweep.vocab_size, "clock": clock, "num_prompt": NUM_PROMPT}
    time_cycles(executor, plain, cycles=COUNTED, on_cycle=on_cycle, **settings)
    wire.ledger = None
    drafter, steps = executor.worker.drafter, config.speculation.steps
    return Load(
        collectives=merged(ledger.rows()),
        weight_bytes=0 if drafter is None else draft_bytes(drafter.draft.model, steps),
    )


def merged(rows: Sequence[LedgerRow]) -> tuple[LedgerRow, ...]:
    """The same without stages: where the host was when it queued a collective says nothing on a GPU."""
    totals: dict[tuple[str, str, str], tuple[int, int]] = {}
    for row in rows:
        count, num_bytes = totals.get((row.role, row.op, row.name), (0, 0))
        totals[row.role, row.op, row.name] = (count + row.count, num_bytes + row.num_bytes)
    return tuple(
        LedgerRow(stage="", role=role, op=op, name=name, count=count, num_bytes=num_bytes)
        for (role, op, name), (count, num_bytes) in totals.items()
    )


def draft_bytes(model: Eagle3Draft, steps: int) -> int:
    """Weights that a cycle of so many steps reads: everything each step, what fuses the features once."""
    itemsize = model.norm.weight.element_size()
    linear = [layer for layer in model.modules() if isinstance(layer, Linear)]
    every = sum(math.prod(layer.shape) for layer in linear if layer is not model.fc)
    return (every * steps + math.prod(model.fc.shape)) * itemsize


def _time(
    executor: RankExecutor, config: EngineConfig, sweep: Sweep, *, batch: int, clock: Clock, into: _Samples
) -> None:
    """Add the times of one round to a point's samples."""
    drafts: list[float] = []

    def on_cycle() -> None:
        cycle = executor.worker.cycle
        if not isinstance(cycle.stamps, Laps):
            cycle.stamps = Laps(cycle.stamps, executor.rank.device)
            return
        drafts.append(cycle.stamps.take())

    settings = {"vocab_size": sweep.vocab_size, "clock": clock, "num_prompt": NUM_PROMPT}
    times = time_cycles(executor, config, cycles=WARM_UP + sweep.cycles, batch=batch, on_cycle=on_cycle, **settings)
    into.cycles_s += times[WARM_UP:]
    into.drafts_ms += drafts[WARM_UP - 1 :]


def _point(case: Case, batch: int, inject_us: float, found: _Samples, sweep: Sweep) -> Point:
    low, middle, high = quantiles(found.cycles_s, n=4)
    return Point(
        case=case,
        batch=batch,
        inject_us=inject_us,
        cycle_ms=middle * 1e3,
        spread_ms=(high - low) * 1e3,
        draft_ms=quantiles(found.drafts_ms, n=4)[1] if case.steps else 0.0,
        accept_length=accept_length(case.steps, sweep.acceptance),
        num_cycles=len(found.cycles_s),
    )


def latencies(executor: RankExecutor) -> tuple[tuple[tuple[int, float], ...], float]:
    """What the group measured of its wire when it came up: all-reduces by size, and the backend's smallest one."""
    paths = executor.rank.world.paths
    if paths is None or not paths.rows:
        return (), 0.0
    ways = tuple((row.num_bytes, row.us[row.chosen]) for row in paths.rows)
    return ways, paths.rows[0].us[AllReducePath.NCCL]


def read_rate(device: torch.device) -> float:
    """Bytes a second at which one row is multiplied by a matrix that no cache holds."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    width = 4096
    num_rows = READ_BYTES[device.type] // (width * dtype.itemsize)
    weight = torch.ones(num_rows, width, dtype=dtype, device=device)
    row = torch.ones(1, width, dtype=dtype, device=device)
    us = time_calls(lambda: F.linear(row, weight), device, calls=10)
    return weight.nbytes / us * 1e6


def by_case(points: Sequence[Point], batch: int) -> Mapping[tuple[Case, float], Point]:
    """The points of one batch size."""
    return {(point.case, point.inject_us): point for point in points if point.batch == batch}
