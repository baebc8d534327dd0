"""Where a profile says that time goes: delays put into one part, and sums beside the wall clock."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from slipstream.bench.delays import Delays, parse_delays
from slipstream.bench.profile import Profiled, ProfilePlan
from slipstream.bench.profile_sums import collectives, draft_step_ms, fit_steps, stage_rows, wall_ms
from slipstream.bench.spans import ACCEPT, EXTEND, HOST, VERIFY, CycleTimes, Span
from slipstream.config.speculation import PLAIN, speculation
from slipstream.engine.executor import RankExecutor
from tests.unit.bench.profiled import CYCLES, STAGES, STEPS, opened, plan, quiet, split

DELAY_MS = 50.0  # far beyond what a busy machine adds to the quietest cycle
MOST_SPLITS = 4


@pytest.fixture(scope="module")
def executor() -> Iterator[RankExecutor]:
    found = opened()
    yield found
    found.close()


@pytest.fixture(scope="module")
def undelayed(executor: RankExecutor) -> Profiled:
    return split(executor, plan())


def test_every_cycle_is_told_whole(undelayed: Profiled) -> None:
    cycles = undelayed.cycles[plan().main]
    assert len(cycles) == CYCLES
    for cycle in cycles:
        labels = [span.label for span in cycle.spans]
        assert labels == [HOST, EXTEND, "draft 1", "draft 2", VERIFY, ACCEPT, HOST]
        assert sum(span.ms for span in cycle.spans) == pytest.approx(cycle.wall_ms, rel=1e-3)
        ends = [span.end_ms for span in cycle.spans]
        assert [span.begin_ms for span in cycle.spans[1:]] == pytest.approx(ends[:-1])


def test_nothing_of_the_recording_stays_on_the_models(executor: RankExecutor, undelayed: Profiled) -> None:
    assert undelayed.bare_ms, "cycles without marks were timed as well"
    target, drafter = executor.worker.cycle.target, executor.worker.drafter
    assert drafter is not None
    for module in (target, target.head, drafter.draft.model, drafter.draft.model.head, drafter.draft.model.fc):
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert executor.rank.world.wire.watch is None


@pytest.mark.parametrize(
    ("inject", "labels"),
    [
        ("extend", (EXTEND,)),
        ("draft", ("draft 1", "draft 2")),
        ("verify", (VERIFY,)),
        ("host", (HOST,)),
    ],
)
def test_a_delay_is_found_in_the_stage_that_it_was_put_into(
    inject: str, labels: tuple[str, ...], executor: RankExecutor, undelayed: Profiled
) -> None:
    wanted = plan(inject=f"{inject}={DELAY_MS}")
    before = quiet(undelayed.cycles[plan().main]).stages_ms
    cycles, added = [], {}
    for _ in range(MOST_SPLITS):  # a delay in the wrong stage is in every cycle; what a busy machine adds is not
        cycles += split(executor, wanted).cycles[wanted.main]
        after = quiet(cycles).stages_ms
        added = {label: after[label] - before[label] for label in STAGES}
        if all(added[label] < 0.1 * DELAY_MS for label in STAGES if label not in labels):
            break
    for label in STAGES:
        if label in labels:
            assert added[label] >= 0.9 * DELAY_MS, added
        else:
            assert added[label] < 0.1 * DELAY_MS, added


def test_a_plain_step_has_no_draft_in_it(executor: RankExecutor) -> None:
    wanted = replace(plan(), shape=PLAIN)
    labels = {span.label for cycle in split(executor, wanted).cycles[wanted.main] for span in cycle.spans}
    assert labels == {HOST, VERIFY, ACCEPT}


def test_a_tree_is_split_like_a_chain(executor: RankExecutor) -> None:
    wanted = replace(plan(), shape=speculation(3, 2, 6))
    found = split(executor, wanted)
    labels = [row.label for row in stage_rows(wanted, found)]
    assert labels == [EXTEND, "draft 1", "draft 2", "draft 3", VERIFY, ACCEPT, HOST]
    assert all(row.ms > 0 for row in stage_rows(wanted, found))


def test_stages_have_the_bytes_of_the_weights_they_read(executor: RankExecutor, undelayed: Profiled) -> None:
    counts = undelayed.counts
    target, drafter = executor.worker.cycle.target, executor.worker.drafter
    assert drafter is not None
    draft = drafter.draft.model
    assert counts["draft 1"].num_bytes == 4 * draft.head.shape[0] * draft.head.shape[1]
    assert counts[EXTEND].num_bytes - counts["draft 2"].num_bytes == 4 * (
        draft.fc.shape[0] * draft.fc.shape[1] - draft.head.shape[0] * draft.head.shape[1]
    )
    per_layer = 64 * 128 + 64 * 64 + 3 * 64 * 96
    matrices = 8 * per_layer + 64 * 128
    assert counts[VERIFY].num_bytes > 4 * matrices
    assert counts[VERIFY].flops > 2 * (STEPS + 1) * matrices
    assert counts[ACCEPT].num_bytes == (STEPS + 1) * target.config.vocab_size * 4
    assert HOST not in counts


def timed(wall: float, *, verify: float, steps: int = STEPS) -> CycleTimes:
    """A cycle whose host takes what the others leave."""
    spans = [Span(label=EXTEND, begin_ms=0, end_ms=0.5)]
    spans += [
        Span(label=f"draft {step}", begin_ms=0.5 + 0.1 * step, end_ms=0.6 + 0.1 * step) for step in range(1, steps + 1)
    ]
    spans += [Span(label=VERIFY, begin_ms=2, end_ms=2 + verify), Span(label=HOST, begin_ms=2 + verify, end_ms=wall)]
    return CycleTimes(began_s=0.0, wall_ms=wall, spans=tuple(spans), calls=())


def made_up(wanted: ProfilePlan) -> Profiled:
    found = Profiled(read_bytes_per_s=1e9, counts={})
    for steps, case in wanted.fits().items():
        found.cycles[case] = [timed(5.0 + 0.5 * steps, verify=3.0, steps=steps)] * 4
    held_up = timed(90.0, verify=80.0)
    found.cycles[wanted.main] = [timed(6.0, verify=3.0)] * 8 + [held_up] * 2
    found.watched = found.cycles[wanted.main]
    return found


def test_a_cycle_that_was_held_up_is_in_the_p90_alone() -> None:
    wanted = plan()
    found = made_up(wanted)
    (verify,) = [row for row in stage_rows(wanted, found) if row.label == VERIFY]
    assert (verify.ms, verify.median_ms, verify.p90_ms) == (3.0, 3.0, 80.0)
    assert wall_ms(found.cycles[wanted.main]) == 6.0


def test_a_line_through_the_cycles_is_step_of_k() -> None:
    wanted = plan(steps=4)
    fit = fit_steps(wanted, made_up(wanted))
    assert (fit.a_ms, fit.b_ms, fit.residual_ms) == pytest.approx((5.0, 0.5, 0.0))
    assert fit.at(4) == pytest.approx(7.0)


def test_a_draft_step_is_one_after_the_first() -> None:
    spans = (
        Span(label="draft 1", begin_ms=0, end_ms=0.2),
        Span(label="draft 2", begin_ms=1, end_ms=2.0),
        Span(label="draft 3", begin_ms=2, end_ms=3.0),
    )
    cycle = CycleTimes(began_s=0.0, wall_ms=4.0, spans=spans, calls=())
    assert draft_step_ms([cycle]) == 1.0
    assert draft_step_ms([replace(cycle, spans=spans[:1])]) == pytest.approx(0.2)


def test_one_rank_sends_nothing(undelayed: Profiled) -> None:
    assert collectives(undelayed.watched) == []


def test_delays_are_read() -> None:
    assert parse_delays("draft=5,host=2") == Delays(draft=5, host=2)
    assert parse_delays(None) == Delays()
    for wrong in ("draft", "draft=x", "sampling=3", "host=-1"):
        with pytest.raises(ValueError, match="--inject"):
            parse_delays(wrong)
