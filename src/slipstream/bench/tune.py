"""Find the fastest shape of a cycle, and place for the draft, for each batch size on one resident target.

Acceptance comes from few real runs: every chain's from the deepest one, every tree's from one large tree of its topk.
Costs are timed apart from it, each shape's cycle with the acceptance that it was forecast, and only where a shape could
still win, those that promise most once more in turn. These then answer the prompts for real, in turn with plain
decoding, which wins ties, until the fastest beats the others beyond the noise or a share of the grid's time is used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

from slipstream.bench.acceptance import chain_forecast
from slipstream.bench.tune_grid import (
    PLAIN_SETUP,
    Setup,
    best_setups,
    cost_bound,
    name_of,
    near_best,
    shape_named,
    worth_timing,
)
from slipstream.bench.tune_journal import Journal
from slipstream.bench.tune_race import Choice, Race
from slipstream.bench.tune_run import RealRun, Task, answer
from slipstream.bench.tune_walks import Walks, watching
from slipstream.config.engine import EngineConfig
from slipstream.config.placement import Placement
from slipstream.config.speculation import PLAIN, Speculation
from slipstream.engine.executor import RankExecutor
from slipstream.engine.placement import time_cycles
from slipstream.flow.orders import PlaceDraft
from slipstream.telemetry.clock import Clock, Stopwatch

PROBE_BATCH = 8  # requests together while acceptance is read: it does not depend on the batch, and more are faster
PROBE_NODES = 32  # of the large tree, unless a candidate has more
RETIMED, LAPS = 10, 2  # of the most promising setups of a batch, timed so often again, in turn
CONFIRMED = 5  # setups a batch that run for real, beside plain decoding: the best lie within a few per cent
PASSES = 6  # over all prompts, at most
SHARE = 0.3  # of the time in which all setups would answer the prompts: beyond it no further round begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is chosen among, and how thoroughly."""

    draft: PlaceDraft
    shapes: tuple[Speculation, ...]  # without plain decoding, which is always a candidate
    placements: tuple[Placement, ...]
    batches: tuple[int, ...]
    task: Task
    vocab_size: int
    cycles: int  # timed of each shape
    warm_up: int  # cycles before them
    rounds: int  # of confirmation
    least_noise: float  # gains below it are ties


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A cycle's time."""

    setup: Setup
    batch: int
    cycle_ms: float
    spread_ms: float


@dataclass(slots=True, kw_only=True)
class Tuned:
    """Everything that was found."""

    accept_lengths: dict[Speculation, float] = field(default_factory=dict)
    costs: list[Cost] = field(default_factory=list)
    confirmed: dict[int, dict[Setup, list[float]]] = field(default_factory=dict)  # tokens a second of each round
    confirmed_accept_lengths: dict[int, dict[Setup, float]] = field(default_factory=dict)
    choices: dict[int, Choice] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # by stage: forecast, time, confirm

    def predicted(self, batch: int) -> dict[Setup, float]:
        """Tokens a second of what was timed: batch x accept length / cycle."""
        return {
            each.setup: batch * self.accept_lengths[each.setup.shape] / each.cycle_ms * 1e3
            for each in self.costs
            if each.batch == batch
        }


class Tuner:
    """Runs a search on ranks whose target is loaded."""

    def __init__(
        self,
        executor: RankExecutor,
        search: Search,
        journal: Journal,
        *,
        clock: Clock,
        on_work: Callable[[str], None] = lambda what: None,
    ) -> None:
        """on_work: told of each piece of work before it begins."""
        self.executor, self.search, self.journal = executor, search, journal
        self.clock, self.on_work = clock, on_work
        self._placed: str | None = None
        self._spent_s = 0.0  # on all measurements, also those of an earlier run that this one goes on from

    def run(self) -> Tuned:
        """All of it."""
        found = Tuned()
        for stage, work in (("forecast", self.forecast), ("time", self.time), ("confirm", self.confirm)):
            with Stopwatch(self.clock) as watch:
                work(found)
            found.seconds[stage] = watch.seconds
        return found

    def _once(self, key: str, measure: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        record = self.journal.once(key, partial(self._timed, measure))
        self._spent_s += record.get("seconds", 0.0)  # an older journal has none
        return record

    def _timed(self, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        with Stopwatch(self.clock) as watch:
            record = measure()
        return {**record, "seconds": watch.seconds}

    # ------------------------------------------------------------------ acceptance

    def forecast(self, found: Tuned) -> None:
        """Accept length of every shape, from one real run of each topk."""
        found.accept_lengths[PLAIN] = 1.0
        for topk in sorted({shape.topk for shape in self.search.shapes}):
            family = tuple(shape for shape in self.search.shapes if shape.topk == topk)
            probe = probe_of(family)
            record = self._once(f"accept {name_of(probe)}", partial(self._accept, probe, family))
            lengths = record["accept_length_by_shape"]
            found.accept_lengths |= {shape_named(name): length for name, length in lengths.items()}

    def _accept(self, probe: Speculation, family: tuple[Speculation, ...]) -> dict[str, Any]:
        self.on_work(f"accept length of {name_of(probe)} and all below")
        self.place(str(self.search.placements[0]))
        walks = Walks(family)
        run = answer(
            self.executor,
            probe,
            self.search.task,
            batch=min(PROBE_BATCH, len(self.search.task.prompts)),
            clock=self.clock,
            watch=lambda: watching(self.executor.worker, walks),
        )
        if probe.is_chain:
            by_steps = chain_forecast(run.statistics.acceptance_by_position)
            lengths = {shape: by_steps[min(shape.steps, len(by_steps)) - 1] if by_steps else 1.0 for shape in family}
        else:
            lengths = walks.accept_lengths() or self._accept_each(family)
        return {"accept_length_by_shape": {name_of(shape): length for shape, length in lengths.items()}}

    def _accept_each(self, family: tuple[Speculation, ...]) -> dict[Speculation, float]:
        """Trees that run where nobody can watch: every one for itself."""
        lengths = {}
        for shape in family:
            self.on_work(f"accept length of {name_of(shape)}")
            run = answer(self.executor, shape, self.search.task, batch=PROBE_BATCH, clock=self.clock)
            lengths[shape] = run.statistics.accept_length
        return lengths

    # ------------------------------------------------------------------ cost

    def time(self, found: Tuned) -> None:
        """A cycle of every shape that could win, at every placement and batch."""
        for batch in self.search.batches:
            plain = self._cost(PLAIN_SETUP, batch, 1.0)
            found.costs.append(plain)
            for placement in self.search.placements:
                costs = {PLAIN: plain.cycle_ms}
                for shape in self.search.shapes:
                    if shape.is_chain or worth_timing(shape, found.accept_lengths, costs):  # chains make the curve
                        setup = Setup(shape=shape, placement=str(placement))
                        cost = self._cost(setup, batch, found.accept_lengths[shape])
                        costs[shape] = cost.cycle_ms
                        found.costs.append(cost)
            self._time_again(found, batch)

    def _time_again(self, found: Tuned, batch: int) -> None:
        """The most promising in turn, back and forth: what disturbed one timing shall not decide who runs for real."""
        near = near_best(found.predicted(batch), RETIMED)
        laps = {setup: [cost] for cost in found.costs if (setup := cost.setup) in near and cost.batch == batch}
        for lap in range(LAPS):
            for setup in near if lap % 2 else reversed(near):
                laps[setup].append(self._cost(setup, batch, found.accept_lengths[setup.shape], f" again {lap}"))
        for costs in laps.values():
            middle = sorted(costs, key=lambda each: each.cycle_ms)[len(costs) // 2]
            found.costs[found.costs.index(costs[0])] = middle

    def _cost(self, setup: Setup, batch: int, accept_length: float, suffix: str = "") -> Cost:
        key = f"cost {batch} {setup.placement} {name_of(setup.shape)}{suffix}"
        record = self._once(key, partial(self._time_one, setup, batch, accept_length))
        return Cost(setup=setup, batch=batch, cycle_ms=record["cycle_ms"], spread_ms=record["cycle_spread_ms"])

    def _time_one(self, setup: Setup, batch: int, accept_length: float) -> dict[str, Any]:
        self.on_work(f"bs {batch}: a cycle of {name_of(setup.shape)} {setup.placement}".rstrip())
        self.place(setup.placement)
        most = setup.shape.steps + 1
        config = EngineConfig(
            speculation=setup.shape,
            max_len=2,
            synthetic_accept_length=min(most, max(1.0, accept_length)) if setup.shape.steps else None,
        )
        search = self.search
        times = time_cycles(
            self.executor,
            config,
            vocab_size=search.vocab_size,
            clock=self.clock,
            cycles=search.warm_up + search.cycles,
            batch=batch,
            num_prompt=round(median(map(len, search.task.prompts))) + search.task.params.max_tokens // 2,
        )[search.warm_up :]
        times.sort()
        quarter = len(times) // 4
        spread = times[-1 - quarter] - times[quarter]
        return {"cycle_ms": median(times) * 1e3, "cycle_spread_ms": spread * 1e3}

    # ------------------------------------------------------------------ confirmation

    def confirm(self, found: Tuned) -> None:
        """Let the best answer the prompts for real, in turn with plain decoding, and go on with those of like speed."""
        allowed_s = 0.0  # for all measurements until then, batch after batch
        for batch in self.search.batches:
            race = Race(
                partial(self._confirm_one, batch), parts=self.search.rounds, least_noise=self.search.least_noise
            )
            contenders = best_setups(found.predicted(batch), CONFIRMED)
            for _ in range(self.search.rounds):
                race.run_round(contenders, both_ends=True)
            allowed_s += SHARE * self._grid_seconds(found, batch, num_tokens=race.emitted)
            while race.is_open and len(race.rounds) < PASSES * self.search.rounds and self._spent_s < allowed_s:
                race.run_round(race.unbeaten())
            found.confirmed[batch], found.confirmed_accept_lengths[batch] = race.rates(), race.accept_lengths()
            found.choices[batch] = race.choice()

    def _grid_seconds(self, found: Tuned, batch: int, *, num_tokens: int) -> float:
        """How long every setup would take for as many tokens; of those that were not timed, at least."""
        seconds = {setup: num_tokens / rate for setup, rate in found.predicted(batch).items()}
        for placement in map(str, self.search.placements):
            timed = [each for each in found.costs if (each.batch, each.setup.placement) == (batch, placement)]
            costs = {each.setup.shape: each.cycle_ms for each in timed}
            for shape in self.search.shapes:
                rate = batch * found.accept_lengths[shape] / max(cost_bound(shape, costs), 1e-9) * 1e3
                seconds.setdefault(Setup(shape=shape, placement=placement), num_tokens / rate)
        return sum(seconds.values())

    def _confirm_one(self, batch: int, setup: Setup, number: int, suffix: str) -> Mapping[str, Any]:
        key = f"confirm {batch} {number} {setup.placement} {name_of(setup.shape)}{suffix}"
        return self._once(key, partial(self.real_run, setup, batch, number))

    def real_run(self, setup: Setup, batch: int, number: int) -> dict[str, Any]:
        """One round of one contender: as many prompts as a round takes, other ones in each round."""
        self.on_work(f"bs {batch}: {name_of(setup.shape)} answers, round {number + 1}")
        self.place(setup.placement)
        count = per_round(len(self.search.task.prompts), rounds=self.search.rounds, batch=batch)
        task = self.search.task.part(number * count, count)
        run: RealRun = answer(self.executor, setup.shape, task, batch=batch, clock=self.clock)
        counts = {"emitted": run.statistics.emitted, "cycles": run.statistics.cycles}
        return {"tokens_per_s": run.tokens_per_s, **counts}

    def place(self, placement: str) -> None:
        """Have the draft where a setup wants it; plain decoding runs without one, as a plain engine would."""
        if placement == self._placed:
            return
        if placement:
            where = next(each for each in self.search.placements if str(each) == placement)
            self.executor.order(replace(self.search.draft, placement=where))
        else:
            self.executor.order(replace(self.search.draft, path=None, dummy=None))
        self._placed = placement


def probe_of(family: tuple[Speculation, ...]) -> Speculation:
    """The one shape whose cycles tell those of all others of its topk."""
    steps, topk = max(shape.steps for shape in family), family[0].topk
    if topk == 1:
        return Speculation(steps=steps, topk=1, draft_tokens=steps)
    most = topk + (steps - 1) * topk * topk
    wanted = max(PROBE_NODES, *(shape.draft_tokens for shape in family))
    return Speculation(steps=steps, topk=topk, draft_tokens=min(most, wanted))


def per_round(num_prompts: int, *, rounds: int, batch: int) -> int:
    """Prompts of one round: a share of all, in whole batches."""
    share = -(-num_prompts // rounds)
    return -(-share // batch) * batch
