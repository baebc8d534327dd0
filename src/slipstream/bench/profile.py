"""Split cycles into their parts: which shapes are timed, and in which order, so that a drift meets each of them.

Everything runs through the engine's own cycles, so that graphs, ranks and collectives are those of serving. Recorded
cycles run one by one, since the events of a captured graph are read before it is replayed. Where the engine launches
cycles ahead, those that judge are timed as they are served as well, without a mark. Cost is measured with decreed
acceptance; real acceptance is measured elsewhere (profile_acceptance.py) and never mixed in.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from slipstream.bench.delays import NO_DELAYS, Brake, Delays
from slipstream.bench.latency_rates import memory_rates
from slipstream.bench.placement import accept_length
from slipstream.bench.profile_counts import Count, CycleSize, count_stages
from slipstream.bench.recorder import RecordedExecutor, Recorder
from slipstream.bench.spans import CycleTimes
from slipstream.bench.verify_curve import CURVE_TOKENS
from slipstream.config.engine import EngineConfig
from slipstream.config.placement import Placement
from slipstream.config.speculation import PLAIN, Speculation, speculation
from slipstream.engine.executor import RankExecutor
from slipstream.engine.placement import time_cycles
from slipstream.flow.orders import PlaceDraft
from slipstream.telemetry.clock import Clock

FIT_STEPS = (1, 2, 3, 5)
PLACE_STEPS = (FIT_STEPS[0], FIT_STEPS[-1])
WARM_UP = 4  # cycles; a capture happens in the first


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Case:
    """One shape of cycle that is timed."""

    steps: int
    topk: int = 1
    draft_tokens: int = 0
    batch: int = 1

    @property
    def shape(self) -> Speculation:
        """As a cycle takes it."""
        return Speculation(steps=self.steps, topk=self.topk, draft_tokens=self.draft_tokens)


def case_of(shape: Speculation, batch: int) -> Case:
    """The case of a shape."""
    return Case(steps=shape.steps, topk=shape.topk, draft_tokens=shape.draft_tokens, batch=batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    """What is profiled."""

    draft: PlaceDraft  # placed as it is to be profiled
    places: tuple[Placement, ...]  # where else the draft is timed
    vocab_size: int
    shape: Speculation
    batch: int
    context: int
    acceptance: tuple[float, ...]  # decreed, by position; the last holds for all beyond
    cycles: int  # of each case and round
    rounds: int
    graphs: bool = True
    delays: Delays = NO_DELAYS

    @property
    def main(self) -> Case:
        """The case that is split into stages."""
        return case_of(self.shape, self.batch)

    @property
    def plain(self) -> Case:
        """Plain decoding at the same batch."""
        return case_of(PLAIN, self.batch)

    def curve(self) -> dict[int, Case]:
        """Chains of one request whose verify runs so many tokens."""
        return {tokens: case_of(speculation(tokens - 1), 1) for tokens in CURVE_TOKENS}

    def fits(self) -> dict[int, Case]:
        """Cycles whose time is fitted over the number of steps."""
        shapes = {steps: speculation(steps, self.shape.topk) for steps in FIT_STEPS}
        return {steps: case_of(shape, self.batch) for steps, shape in shapes.items()}

    def cases(self) -> list[Case]:
        """Every case once, plain ones first: they run without a draft."""
        return sorted({*self.curve().values(), *self.fits().values(), self.main, self.plain})

    def runs_ahead(self, device: str) -> bool:
        """Whether the engine launches such cycles ahead on a kind of device; a delay sits in recorded cycles alone."""
        config = self.served_config(self.main)
        return device == "cuda" and config.graphs and config.run_ahead and self.delays == NO_DELAYS

    def served_cases(self, device: str) -> list[Case]:
        """The cases that are timed as they are served, too: whose wall time judges; none where nothing runs ahead."""
        return sorted({*self.fits().values(), self.main, self.plain}) if self.runs_ahead(device) else []

    def num_runs(self, device: str) -> int:
        """How many runs of cycles there are, for a bar."""
        served = self.served_cases(device)
        places = len(PLACE_STEPS) * len(self.places) * (2 if served else 1)
        watched, bare = device != "cpu", self.delays == NO_DELAYS
        return self.rounds * (len(self.cases()) + len(served) + places + watched + bare)

    @property
    def longest(self) -> int:
        """Tokens of context that the deepest case may reach."""
        deepest = max(case.steps for case in self.cases())
        return self.context + (WARM_UP + self.cycles + 2) * (deepest + 1) + 1

    def served_config(self, case: Case) -> EngineConfig:
        """An engine as it serves, but for its acceptance, which is decreed."""
        decreed = accept_length(case.steps, self.acceptance) if case.steps else None
        return EngineConfig(
            speculation=case.shape,
            max_len=self.longest,
            synthetic_accept_length=decreed,
            graphs=self.graphs,
        )

    def config(self, case: Case) -> EngineConfig:
        """The same, its cycles run one by one."""
        return replace(self.served_config(case), run_ahead=False)


@dataclass(slots=True, kw_only=True)
class Profiled:
    """Everything that was measured; cost only."""

    cycles: dict[Case, list[CycleTimes]] = field(default_factory=lambda: defaultdict(list))
    served: dict[Case, list[float]] = field(default_factory=lambda: defaultdict(list))  # ms, launched ahead, unmarked
    watched: list[CycleTimes] = field(default_factory=list)  # of the main case, with its collectives
    bare_ms: list[float] = field(default_factory=list)  # cycles of the main case that nobody recorded, one by one
    placed: dict[Placement, dict[int, list[CycleTimes]]] = field(default_factory=lambda: defaultdict(dict))
    placed_served: dict[Placement, dict[int, list[float]]] = field(default_factory=lambda: defaultdict(dict))  # ms
    counts: Mapping[str, Count] = field(default_factory=dict)
    read_bytes_per_s: float = 0.0

    def judging_ms(self, case: Case) -> list[float]:
        """Wall times of a case's cycles as they are served; the recorded ones' where nothing runs ahead."""
        return self.served.get(case) or [each.wall_ms for each in self.cycles[case]]

    def cycle_ms(self, case: Case) -> float:
        """Median wall time of a cycle that judges."""
        return median(self.judging_ms(case))

    def placed_ms(self, place: Placement, steps: int) -> float:
        """The same under a placement."""
        served = self.placed_served.get(place, {}).get(steps)
        return median(served or [each.wall_ms for each in self.placed[place][steps]])


def replayed_ms(seconds: Sequence[float], num_captures: Sequence[int]) -> list[float]:
    """Milliseconds of the cycles that captured nothing; num_captures: before the first cycle and after each."""
    captured = [before != after for before, after in pairwise(num_captures)]
    return [each * 1e3 for each, held_up in zip(seconds, captured, strict=True) if not held_up]


class Profiler:
    """One run of `slipstream profile` on an executor whose target is loaded."""

    def __init__(
        self, executor: RankExecutor, plan: ProfilePlan, *, clock: Clock, on_run: Callable[[str], None]
    ) -> None:
        """on_run: told what was timed."""
        self.plan, self._bare, self._clock, self._on_run = plan, executor, clock, on_run
        brake = Brake(executor.rank.device, plan.delays)
        self._recorder = Recorder(executor.rank.device, brake)
        self._recorded = RecordedExecutor(executor, self._recorder, brake)
        self._watch_all = executor.rank.device.type == "cpu"  # two readings of the clock; on a GPU, two events
        self._served = plan.served_cases(executor.rank.device.type)
        self._found = Profiled()

    def run(self) -> Profiled:
        """Time every case in every round; the draft is left where it is profiled."""
        plan, found = self.plan, self._found
        found.read_bytes_per_s = memory_rates(self._bare.rank.device).read
        for _ in range(plan.rounds):
            plain = [case for case in plan.cases() if case.steps == 0]
            self._place(None)
            for case in plain:
                self._time(case)
            for place in plan.places:
                self._place(place)
                for steps in PLACE_STEPS:
                    self._time_placed(place, steps)
            self._place(plan.draft.placement)
            for case in plan.cases():
                if case.steps:
                    self._time(case)
            self._main_runs()
        found.counts = self._counted()
        return found

    def split(self) -> Profiled:
        """The profiled case alone: its stages, its collectives and its counts."""
        plan, found = self.plan, self._found
        found.read_bytes_per_s = memory_rates(self._bare.rank.device).read
        self._place(plan.draft.placement)
        for _ in range(plan.rounds):
            self._time(plan.main)
            self._main_runs()
        found.counts = self._counted()
        return found

    def _time(self, case: Case) -> None:
        """Record cycles of a case, and, where its wall time judges, time others as they are served."""
        self._found.cycles[case] += self._record(case)
        if case in self._served:
            self._found.served[case] += self._serve(case)

    def _time_placed(self, place: Placement, steps: int) -> None:
        """The same of a chain under a placement."""
        case = case_of(speculation(steps), self.plan.batch)
        self._found.placed[place].setdefault(steps, []).extend(self._record(case))
        if self._served:
            self._found.placed_served[place].setdefault(steps, []).extend(self._serve(case))

    def _main_runs(self) -> None:
        """The main case with its collectives watched, and, unless it is delayed, with nobody listening."""
        plan, found = self.plan, self._found
        if self._watch_all:
            found.watched = found.cycles[plan.main]
        else:
            found.watched += self._record(plan.main, watch=True)
        self._recorder.detach()
        if plan.delays == NO_DELAYS:
            found.bare_ms += self._unmarked(plan.config(plan.main), plan.main.batch)
            self._on_run("cycles without marks")

    def _serve(self, case: Case) -> list[float]:
        """Milliseconds of cycles as the engine serves them."""
        found = self._unmarked(self.plan.served_config(case), case.batch)
        self._on_run(f"K {case.steps}, bs {case.batch}, as served")
        return found

    def _unmarked(self, config: EngineConfig, batch: int) -> list[float]:
        """Milliseconds of cycles that nobody listens to; those that captured a graph are left out, as recorded ones."""
        plan, num_captures = self.plan, []

        def on_cycle() -> None:
            num_captures.append(len(self._bare.worker.captures()))

        self._recorder.detach()
        settings = {"vocab_size": plan.vocab_size, "clock": self._clock, "num_prompt": plan.context}
        cycles = WARM_UP + plan.cycles
        times = time_cycles(self._bare, config, cycles=cycles, batch=batch, on_cycle=on_cycle, **settings)
        return replayed_ms(times[WARM_UP:], num_captures[WARM_UP - 1 :])

    def _record(self, case: Case, *, watch: bool = False) -> list[CycleTimes]:
        """Cycles of one case; watch: their collectives too."""
        plan, found, wire = self.plan, [], self._bare.rank.world.wire

        def on_cycle() -> None:
            found.append(self._recorder.left())

        settings = {"vocab_size": plan.vocab_size, "clock": self._clock, "num_prompt": plan.context}
        cycles = WARM_UP + plan.cycles
        wire.watch = self._recorder if watch or self._watch_all else None
        time_cycles(self._recorded, plan.config(case), cycles=cycles, batch=case.batch, on_cycle=on_cycle, **settings)
        wire.watch = None
        self._on_run(f"K {case.steps}, bs {case.batch}")
        return [each for each in found[WARM_UP:] if each is not None]

    def _place(self, place: Placement | None) -> None:
        draft = self.plan.draft
        self._bare.order(replace(draft, path=None, dummy=None) if place is None else replace(draft, placement=place))

    def _counted(self) -> Mapping[str, Count]:
        worker, plan = self._bare.worker, self.plan
        draft = None if worker.drafter is None else worker.drafter.draft.model
        emitted = accept_length(plan.shape.steps, plan.acceptance)
        middle = plan.context + (WARM_UP + plan.cycles / 2) * emitted
        size = CycleSize(shape=plan.shape, batch=plan.batch, context=middle, accept_length=emitted)
        return count_stages(worker.cycle.target, draft, size)
