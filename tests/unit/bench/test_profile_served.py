"""Which cycles judge: those that the engine serves, where it launches them ahead, and the recorded ones elsewhere."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from slipstream.bench.profile import Case, Profiled, ProfilePlan, Profiler, case_of, replayed_ms
from slipstream.bench.profile_definitions import PROFILE_DEFINITIONS
from slipstream.bench.profile_rows import Evidence, as_object
from slipstream.bench.profile_served import served_cycle, served_fields, served_rows
from slipstream.bench.profile_sums import stage_rows
from slipstream.bench.spans import ACCEPT, EXTEND, HOST, VERIFY, CycleTimes, Span
from slipstream.bench.watched import WatchedProducts
from slipstream.cli.profile_tables import print_profile
from slipstream.config.engine import EngineConfig
from slipstream.config.placement import Placement
from slipstream.config.speculation import speculation
from slipstream.telemetry.clock import Clock
from tests.unit.bench.profiled import opened, plan

NO_GAP = "no host gap: overlap the host's work with the device's"
NO_REST = "no host gap: overlap the rest of the host's work with the device's"


class Captured(ProfilePlan):
    """Timed as on a CUDA device whose cycles are captured."""

    def served_cases(self, device: str) -> list[Case]:
        """Whatever the device is."""
        return ProfilePlan.served_cases(self, "cuda")


def captured(wanted: ProfilePlan) -> Captured:
    return Captured(**{name: getattr(wanted, name) for name in ProfilePlan.__dataclass_fields__})


def recorded(steps: int, *, verify: float = 3.0, host: float = 2.0) -> CycleTimes:
    """One draft step takes a tenth of a millisecond, extend and accept as much."""
    found: list[Span] = []
    steps_ms = [(f"draft {step}", 0.1) for step in range(1, steps + 1)]
    drafting = [(EXTEND, 0.1), *steps_ms] if steps else []
    for label, ms in (*drafting, (VERIFY, verify), (ACCEPT, 0.1), (HOST, host)):
        begin = found[-1].end_ms if found else 0.0
        found.append(Span(label=label, begin_ms=begin, end_ms=begin + ms))
    return CycleTimes(began_s=0.0, wall_ms=found[-1].end_ms, spans=tuple(found), calls=())


def made_up(wanted: ProfilePlan, *, served: Mapping[int, float] | None) -> Profiled:
    """Recorded cycles whose host takes 2 ms; served: milliseconds by steps, of batches as profiled."""
    found = Profiled(read_bytes_per_s=1e12, bare_ms=[5.2] * 8)
    for case in wanted.cases():
        found.cycles[case] = [recorded(case.steps)] * 8
    found.watched = found.cycles[wanted.main]
    for steps, ms in (served or {}).items():
        found.served[case_of(speculation(steps), wanted.batch)] = [ms] * 8
    return found


def told(found: Profiled, wanted: ProfilePlan) -> dict[str, Any]:
    return as_object(Evidence(plan=wanted, found=found, accepted=None, unmeasured="random"), {})


SERVED_MS = {0: 3.2, 1: 3.5, 2: 3.6, 3: 3.7, 5: 3.9}  # of 2 steps the device has 3.4 ms to do
WANTED = replace(plan(), acceptance=(0.5,))


def test_cycles_run_ahead_on_cuda_where_they_are_captured_and_not_delayed() -> None:
    assert plan().runs_ahead("cuda")
    assert not plan().runs_ahead("cpu")
    assert not replace(plan(), graphs=False).runs_ahead("cuda")
    assert not plan(inject="verify=1").runs_ahead("cuda")


def test_the_plain_step_the_fit_and_the_profiled_cycle_are_timed_as_served() -> None:
    wanted = replace(plan(steps=4), batch=2)
    cases = wanted.served_cases("cuda")
    assert [(case.steps, case.batch) for case in cases] == [(steps, 2) for steps in (0, 1, 2, 3, 4, 5)]
    assert set(cases) < set(wanted.cases())
    assert wanted.served_cases("cpu") == []


def test_served_cycles_have_the_engines_own_settings_and_recorded_ones_run_one_by_one() -> None:
    wanted = plan()
    served, one_by_one = wanted.served_config(wanted.main), wanted.config(wanted.main)
    assert served.run_ahead == EngineConfig(speculation=wanted.shape, max_len=9).run_ahead is True
    assert one_by_one == replace(served, run_ahead=False)


def test_every_served_case_is_timed_in_every_round_without_a_mark() -> None:
    here = plan().draft.placement
    wanted, told_of = captured(replace(plan(cycles=4), rounds=2, places=(here,))), list[tuple[str, bool]]()
    executor = opened()

    def on_run(what: str) -> None:
        told_of.append((what, isinstance(executor.worker.cycle.target.products, WatchedProducts)))

    try:
        found = Profiler(executor, wanted, clock=Clock(), on_run=on_run).run()
    finally:
        executor.close()
    assert {case: len(times) for case, times in found.served.items()} == dict.fromkeys(wanted.served_cases("cpu"), 8)
    assert {steps: len(times) for steps, times in found.placed_served[here].items()} == {1: 8, 5: 8}
    assert {len(cycles) for cycles in found.cycles.values()} == {8}
    assert len(told_of) == wanted.num_runs("cpu")
    assert {(what.endswith(("as served", "without marks")), marked) for what, marked in told_of} == {
        (True, False),
        (False, True),
    }


def test_nothing_is_timed_twice_where_nothing_runs_ahead() -> None:
    wanted, told_of = plan(cycles=4), list[str]()
    executor = opened()
    try:
        found = Profiler(executor, wanted, clock=Clock(), on_run=told_of.append).run()
    finally:
        executor.close()
    assert not found.served
    assert not found.placed_served
    assert len(told_of) == wanted.num_runs("cpu") == len(wanted.cases()) + 1  # and the cycles without marks
    assert found.judging_ms(wanted.main) == [each.wall_ms for each in found.cycles[wanted.main]]


def test_a_cycle_that_captured_a_graph_is_left_out() -> None:
    assert replayed_ms([1.0, 2.0, 3.0], [1, 1, 2, 2]) == [1000.0, 3000.0]


def test_numbers_that_judge_come_from_served_cycles() -> None:
    found = told(made_up(WANTED, served=SERVED_MS), WANTED)
    assert found["judging_cycles"] == "served"
    assert (found["plain_step_ms"], found["cycle_ms"], found["served_cycle_ms"]) == (3.2, 3.6, 3.6)
    ratios = [found[name] for name in ("cycle_ratio", "cycle_ratio_low", "cycle_ratio_high")]
    assert ratios == pytest.approx([3.6 / 3.2] * 3)
    assert found["break_even_accept_length"] == found["cycle_ratio"]
    assert [each["measured_ms"] for each in found["step_fit"]] == [3.5, 3.6, 3.7, 3.9]
    assert (found["fit_a_ms"], found["fit_b_ms"]) == pytest.approx((3.4, 0.1))
    (deeper,) = [each for each in found["changes"] if each["change"] == "--steps 3"]
    lengths = {2: 1.75, 3: 1.875}
    assert deeper["change_gain"] == pytest.approx((lengths[3] / 3.7) / (lengths[2] / 3.6) - 1)


def test_stages_stay_those_of_recorded_cycles() -> None:
    both = [told(made_up(WANTED, served=served), WANTED) for served in (SERVED_MS, None)]
    for name in ("stages", "stage_sum_ms", "wall_ms", "unexplained_share", "bare_cycle_ms", "marks_overhead"):
        assert both[0][name] == both[1][name]
    assert both[0]["wall_ms"] == pytest.approx(5.4)
    assert both[0]["marks_overhead"] == pytest.approx(5.4 / 5.2 - 1)


def test_recorded_cycles_judge_where_nothing_was_served() -> None:
    found = told(made_up(WANTED, served=None), WANTED)
    assert found["judging_cycles"] == "recorded"
    assert [found[name] for name in ("served_cycle_ms", "host_hidden_ms", "device_idle_share")] == [None] * 3
    assert (found["plain_step_ms"], found["cycle_ms"]) == pytest.approx((5.1, 5.4))
    assert not any(sentence.startswith("as served") for sentence in found["sentences"])
    gaps = [each for each in found["changes"] if each["change"] == NO_GAP]
    assert [each["change_gain"] for each in gaps] == pytest.approx([5.4 / 3.4 - 1])


def test_what_is_hidden_and_what_the_device_still_waits_is_told() -> None:
    found = told(made_up(WANTED, served=SERVED_MS), WANTED)
    assert found["host_hidden_ms"] == pytest.approx(5.2 - 3.6)
    assert found["device_idle_share"] == pytest.approx(0.2 / 3.6)
    (sentence,) = [each for each in found["sentences"] if each.startswith("as served")]
    assert "a cycle takes 3.60 ms and run one by one 5.20 ms: 1.60 ms of the host's part are hidden" in sentence
    assert "the device idles for 5.6%" in sentence
    assert "verify bounds the cycle: 83% of it" in " ".join(found["sentences"])


def test_shares_do_not_fall_below_zero() -> None:
    wanted = WANTED
    found = made_up(wanted, served={**SERVED_MS, 2: 3.3})
    found.bare_ms = [3.2] * 8
    served = served_cycle(wanted, found, stage_rows(wanted, found))
    fields = served_fields(served)
    assert (fields["host_hidden_ms"], fields["device_idle_share"]) == (0.0, 0.0)
    (host,) = [row for row in served_rows(stage_rows(wanted, found), served) if row.label == HOST]
    assert host.ms == 0


def test_overlapping_is_no_advice_where_hardly_anything_is_left_to_overlap() -> None:
    for ms, named in ((3.3, False), (3.43, False), (4.4, True)):
        found = told(made_up(WANTED, served={**SERVED_MS, 2: ms}), WANTED)
        changes = {each["change"]: each["change_gain"] for each in found["changes"]}
        assert NO_GAP not in changes, "the engine does that already"
        assert (NO_REST in changes) == named
        if named:
            assert changes[NO_REST] == pytest.approx(ms / 3.4 - 1)


def test_placements_are_compared_as_served() -> None:
    alone, cut = Placement(ranks=1), Placement(ranks=2)
    wanted = replace(WANTED, draft=replace(WANTED.draft, placement=cut), places=(alone, cut))
    found = made_up(wanted, served=SERVED_MS)
    for place in wanted.places:
        found.placed[place] = {steps: [recorded(steps)] * 8 for steps in (1, 5)}
    found.placed_served = {alone: {1: [3.0] * 4, 5: [3.4] * 4}, cut: {1: [3.5] * 4, 5: [3.9] * 4}}
    rows = {each["placement"]: each for each in told(found, wanted)["draft_placements"]}
    assert rows["tp 1"]["placement_cycle_ms"] == pytest.approx(3.1)
    assert rows["tp 2"]["placement_cycle_ms"] == pytest.approx(3.6)
    assert rows["tp 1"]["draft_step_ms"] == pytest.approx(0.1), "D is a stage of recorded cycles"


def test_tables_name_the_cycles_that_judge(capsys: pytest.CaptureFixture[str]) -> None:
    about = dict.fromkeys(("model", "weights", "tp", "draft_placement", "dtype", "hardware", "time_source"), "x")
    shape = dict.fromkeys(("steps", "topk", "draft_tokens", "batch", "context", "decreed_accept_length"), 1)
    found = told(made_up(WANTED, served=SERVED_MS), WANTED)
    print_profile({**about, **shape, **found})
    printed = " ".join(capsys.readouterr().out.split())
    assert "judging_cycles served: plain_step_ms 3.200, cycle_ms 3.600, cycle_ratio 1.125;" in printed
    assert "served_cycle_ms 3.600, host_hidden_ms 1.600, device_idle_share 5.6%" in printed
    for name in ("judging_cycles", "served_cycle_ms", "host_hidden_ms", "device_idle_share"):
        assert f"{name} = {PROFILE_DEFINITIONS[name]}" in printed
