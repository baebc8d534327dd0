"""Rows, intervals, verdicts and changes of a forecast."""

from dataclasses import replace

import pytest

from slipstream.plan.accept import constant_p
from slipstream.plan.cost import Placed
from slipstream.plan.drafts import DraftKind, make_draft
from slipstream.plan.explain import better, changes, fits, limits, possible, verdict
from slipstream.plan.hardware import machine
from slipstream.plan.models import named_model
from slipstream.plan.search import Acceptance, Question, best, best_speculative, placements, rows_of, search
from slipstream.plan.spread import draws, published

KNOWN = published()
WORLDS = draws(KNOWN.fitted, num=60)


def question(
    model: str = "kimi-k2.5", hardware: str = "8x-rtx-pro-6000-pcie", *, accept: float = 2.1, **more
) -> Question:
    shape = named_model(model)
    return Question(
        shape=shape,
        machine=machine(hardware),
        draft=make_draft(shape, DraftKind.EAGLE3, bits=16),
        acceptance=Acceptance(p=constant_p(accept, 5), at_steps=5),
        **more,
    )


def test_every_number_is_tied_to_the_others_by_its_definition():
    rows = search(question(steps=(0, 2, 5)), KNOWN, WORLDS)
    plain = rows[0]
    assert (plain.steps, plain.ratio.middle, plain.speedup.middle) == (0, 1.0, 1.0)
    for row in rows:
        assert row.ratio.middle == pytest.approx(row.cycle_ms.middle / plain.cycle_ms.middle)
        assert row.speedup.middle == pytest.approx(row.accept_length.middle / row.ratio.middle)
        assert row.tokens_per_s.middle == pytest.approx(1e3 * row.accept_length.middle / row.cycle_ms.middle)
        for span in (row.cycle_ms, row.ratio, row.accept_length, row.tokens_per_s, row.speedup):
            assert span.low <= span.middle <= span.high
        assert sum(ms for _, ms in limits(row)) == pytest.approx(row.cycle_ms.middle)


def test_placements_are_whole_or_cut_over_divisors():
    assert [str(each) for each in placements(8)] == ["replicated", "tp 1", "tp 2", "tp 4", "tp 8"]
    assert placements(1) == (Placed(),)


def test_on_this_box_cutting_the_draft_beats_holding_it_whole():
    """A whole draft would win only if an all-reduce took half a millisecond."""
    rows = {str(row.place): row for row in search(question(steps=(0, 3)), KNOWN, WORLDS) if row.steps}
    assert rows["tp 8"].cycle_ms.middle < rows["tp 2"].cycle_ms.middle < rows["replicated"].cycle_ms.middle


def test_own_times_narrow_the_interval():
    from slipstream.plan.calibrate import typed_points

    bare = best_speculative(search(question(steps=(0, 2)), KNOWN, WORLDS)).speedup
    own = best_speculative(search(question(steps=(0, 2), measured=typed_points("1:11,4:16.5")), KNOWN, WORLDS)).speedup
    assert own.high - own.low < 0.7 * (bare.high - bare.low)


def test_a_measured_plain_step_is_the_plain_row():
    rows = search(question(steps=(0, 2), plain_ms=11.1), KNOWN, WORLDS)
    assert rows[0].cycle_ms.middle == pytest.approx(11.1)


@pytest.mark.parametrize(("accept", "word"), [(1.02, "LOSS"), (5.6, "GAIN"), (2.1, "INCONCLUSIVE")])
def test_the_verdict_is_what_the_interval_says(accept, word):
    asked = question(accept=accept, steps=(0, 5))
    rows = search(asked, KNOWN, WORLDS)
    said = verdict(asked, rows, stated=True)
    assert said.word == word
    assert said.sentence.startswith(word)


def test_without_an_accept_length_there_is_no_verdict_but_a_break_even():
    asked = question(steps=(0, 1, 3))
    said = verdict(asked, search(asked, KNOWN, WORLDS), stated=False)
    assert said.word == "INCONCLUSIVE"
    assert "Break-even is" in said.sentence


def test_plain_decoding_is_best_where_nothing_is_accepted():
    assert best(search(question(accept=1.0, steps=(0, 1, 3)), KNOWN, WORLDS)).steps == 0


def test_changes_are_those_that_make_sense_here_and_come_with_their_gain():
    asked = replace(question(steps=(0, 1, 2, 3)), machine=machine("8x-rtx-pro-6000-pcie", state="untuned"))
    found = {each.what: each.gain for each in changes(asked, KNOWN, WORLDS)}
    assert found["all-reduce tuned"].low > 0.05
    assert found["a better draft (conditional acceptance +0.1)"].low > 0.05
    assert "twice the devices" in found
    assert not any("all-reduce" in each for each in possible(question("llama-3.1-8b", "1x-h200")))


def test_a_better_draft_keeps_positions_falling():
    more = better(Acceptance(by_position=(0.645, 0.393, 0.240)))
    assert more.by_position[0] == pytest.approx(0.745)
    assert list(more.by_position) == sorted(more.by_position, reverse=True)


def test_what_does_not_fit_is_said():
    assert fits(question())
    assert not fits(question(hardware="4x-rtx-pro-6000-pcie"))
    assert not fits(question("llama-3.1-8b", "1x-rtx-4090", batch=64, context=32_000))


def test_a_tree_verifies_its_nodes_and_the_root():
    asked = question(topk=4, draft_tokens=8)
    assert [rows_of(asked, k) for k in (0, 3)] == [1, 9]
    assert rows_of(question(), 3) == 4
