"""Gain, loss or neither, and what would change it: made-up measurements."""

from dataclasses import replace

import pytest

from slipstream.bench.profile_acceptance import Accepted
from slipstream.bench.profile_changes import Facts, best_changes
from slipstream.bench.profile_counts import Count
from slipstream.bench.profile_sums import Fit, StageRow
from slipstream.bench.profile_verdict import GAIN, INCONCLUSIVE, LOSS, judge
from slipstream.bench.profile_words import agreement_sentence, bound_sentence, verdict_sentence
from slipstream.bench.spans import EXTEND, HOST, VERIFY
from slipstream.config.placement import Placement
from slipstream.flow.output import Statistics

PLAIN_MS = [10.0, 10.1, 9.9, 10.0] * 8


def answer(histogram: list[int]) -> Statistics:
    found = Statistics()
    for accepted, count in enumerate(histogram):
        for _ in range(count):
            found.record(kept=accepted + 1, depth=3, proposed=3, trimmed=False)
    return found


def accepted(num_answers: int = 10) -> Accepted:
    """Accept length 2.5 at 3 steps: 1 + (0 + 1 + 2 + 3) / 4."""
    return Accepted(answers=tuple(answer([5, 5, 5, 5]) for _ in range(num_answers)), steps=3, is_chain=True)


def verdict(ratio: float, found: Accepted | None = None, *, steps: int = 3):
    cycles = [each * ratio for each in PLAIN_MS]
    return judge(cycles, PLAIN_MS, accepted() if found is None else found, steps=steps, unmeasured="random")


def test_accept_length_over_r_is_the_gain() -> None:
    found = verdict(2.0)
    assert (found.word, found.accept_length, found.ratio) == (GAIN, 2.5, pytest.approx(2.0))
    assert found.gain == pytest.approx(0.25)
    assert "25.0% faster" in verdict_sentence(found)


def test_below_break_even_is_a_loss() -> None:
    found = verdict(3.0)
    assert found.word == LOSS
    assert "slower" in verdict_sentence(found)


def test_shorter_chains_are_read_from_a_deeper_one() -> None:
    assert accepted().accept_length(1) == pytest.approx(1.75)
    assert accepted().accept_length(2) == pytest.approx(2.25)
    assert accepted().accept_length(0) == 1
    assert not accepted().knows(4)
    assert not replace(accepted(), is_chain=False).knows(2)


def test_an_interval_that_holds_zero_says_nothing() -> None:
    mixed = [answer([15, 0, 0, 5]), answer([2, 3, 5, 10])] * 5
    found = verdict(2.3, Accepted(answers=tuple(mixed), steps=3, is_chain=True))
    assert (found.word, "holds 0" in found.reason) == (INCONCLUSIVE, True)


def test_thin_evidence_says_nothing() -> None:
    assert "answers" in verdict(2.0, accepted(3)).reason
    few = judge([20.0] * 4, [10.0] * 4, accepted(), steps=3, unmeasured="")
    assert (few.word, "raise --cycles" in few.reason) == (INCONCLUSIVE, True)


def test_a_busy_machine_says_nothing() -> None:
    wild = [10.0, 20.0, 40.0, 90.0] * 8
    found = judge(wild, PLAIN_MS, accepted(), steps=3, unmeasured="")
    assert (found.word, "other work" in found.reason) == (INCONCLUSIVE, True)


def test_random_weights_give_a_break_even_and_no_verdict() -> None:
    found = judge([20.0] * 32, PLAIN_MS, None, steps=3, unmeasured="the weights are random")
    assert (found.word, found.gain, found.accept_length) == (INCONCLUSIVE, None, None)
    assert "the weights are random; break-even is an accept length of 2.00" in verdict_sentence(found)


def row(label: str, ms: float, *, floor_ms: float | None = None, communication_ms: float = 0.0) -> StageRow:
    count = None if floor_ms is None else Count(num_bytes=1, flops=1)
    return StageRow(
        label=label, ms=ms, median_ms=ms, p90_ms=ms, communication_ms=communication_ms, count=count, floor_ms=floor_ms
    )


STAGES = (
    row(EXTEND, 1.0, floor_ms=0.5),
    row("draft 1", 0.5, floor_ms=0.4),
    row("draft 2", 1.5, floor_ms=0.4),
    row(VERIFY, 6.0, floor_ms=4.0, communication_ms=1.0),
    row(HOST, 1.0),
)
FIT = Fit(a_ms=7.0, b_ms=1.5, points=((1, 8.5), (2, 10.0)))
FACTS = Facts(
    steps=2,
    cycle_ms=10.0,
    cycles_ms={0: 6.0, 1: 8.0, 2: 10.0, 3: 12.0},
    lengths={0: 1.0, 1: 1.6, 2: 1.9},
    better_length=2.2,
    length_word="measured",
    plain_verify_ms=5.0,
    stages=STAGES,
    runs_ahead=False,
    fit=FIT,
    places={Placement(ranks=1): Fit(a_ms=6, b_ms=1, points=()), Placement(ranks=2): FIT},
    place="tp 2",
)


def test_each_change_has_a_formula_that_gives_its_gain() -> None:
    found = {each.change: each for each in best_changes(FACTS, most=9)}
    gains = {name: each.gain for name, each in found.items()}
    assert gains["--steps 1"] == pytest.approx((1.6 / 8) / (1.9 / 10) - 1)
    assert gains["--draft-tp 1"] == pytest.approx(10 / 8 - 1)
    assert gains["a better draft: +0.1 acceptance at every position"] == pytest.approx(2.2 / 1.9 - 1)
    assert gains["verify all rows at the price of one"] == pytest.approx(10 / 9 - 1)
    assert gains["no host gap: overlap the host's work with the device's"] == pytest.approx(10 / 9 - 1)
    assert gains["verify at 80% of the read rate"] == pytest.approx(10 / 9 - 1)
    assert gains["draft steps at 80% of the read rate"] == pytest.approx(10 / 9 - 1)
    assert "1.60 / 8.00 ms beside 1.90 / 10.00 ms, AL measured" in found["--steps 1"].formula


def test_three_changes_are_named_the_best_first() -> None:
    found = best_changes(FACTS)
    assert [each.change for each in found][:1] == ["--draft-tp 1"]
    assert len(found) == 3
    assert sorted((each.gain for each in found), reverse=True) == [each.gain for each in found]


def test_decoding_plainly_is_always_a_candidate() -> None:
    found = best_changes(replace(FACTS, cycles_ms={0: 4.0, 2: 10.0}))
    assert found[0].change == "decode plainly (--steps 0)"


def test_what_bounds_the_cycle_is_named_with_its_floor() -> None:
    assert "verify bounds the cycle: 50% of it" in bound_sentence(STAGES, 10.0)
    assert "reading weights" in bound_sentence(STAGES, 10.0)
    wire = (*STAGES[:3], row(VERIFY, 6.0, floor_ms=1.0, communication_ms=5.0), STAGES[-1])
    assert "communication bounds the cycle: 50%" in bound_sentence(wire, 10.0)
    assert "drafting bounds" in bound_sentence((row("draft 1", 3, floor_ms=1), row("draft 2", 3, floor_ms=1)), 6.0)


def test_a_gap_beyond_three_percent_is_said() -> None:
    assert ", within 3%" in agreement_sentence(9.8, 10.0)
    assert "NOT within 3%" in agreement_sentence(9.0, 10.0)
