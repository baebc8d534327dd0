"""One's own times set the level and the slope of V(n)."""

import json
from pathlib import Path

import pytest

from slipstream.plan.calibrate import Measured, own_draft, own_verify, profile_points, typed_points, worst_error
from slipstream.plan.cost import Free, Load, Placed, draft_forward_ms, forward
from slipstream.plan.drafts import DraftKind, make_draft
from slipstream.plan.hardware import machine
from slipstream.plan.models import named_model

KIMI, PCIE = named_model("kimi-k2.5"), machine("8x-rtx-pro-6000-pcie")
TWIN_MS = {1: 10.93, 2: 13.22, 4: 16.49, 8: 22.86}  # a Kimi-K2.6 on such cards, one row of each of n requests


def test_two_points_are_met_and_others_lie_close():
    measured = typed_points("1:10.93,4:16.49")
    own = own_verify(measured, KIMI, PCIE, Free())
    ms = {n: forward(KIMI, PCIE, Load(requests=1, rows=n), Free(), own).ms for n in TWIN_MS}
    assert [ms[1], ms[4]] == pytest.approx([10.93, 16.49])
    # rows of one request share more experts than these requests did, so 8 of them come out cheaper
    assert [ms[2], ms[8]] == pytest.approx([13.22, 22.86], rel=0.12)
    assert ms[8] < 22.86


def test_one_point_moves_the_level_only():
    own = own_verify(typed_points("1:20"), KIMI, PCIE, Free())
    assert own.growth == 1
    assert forward(KIMI, PCIE, Load(requests=1, rows=1), Free(), own).ms == pytest.approx(20)


def test_more_points_are_met_in_the_mean():
    curve = tuple(TWIN_MS.items())
    measured = Measured(verify_ms=curve)
    own = own_verify(measured, KIMI, PCIE, Free())
    assert worst_error(measured, KIMI, PCIE, Free(), own) < 0.1


def test_a_profile_gives_its_curve_and_its_draft_step_and_keeps_the_rest_to_itself(tmp_path: Path):
    file = tmp_path / "profile.json"
    curve = [{"tokens": 1, "ms": 4.25, "p90_ms": 4.4}, {"tokens": 4, "ms": 4.6}]
    file.write_text(json.dumps({"verify_curve": curve, "draft_step_ms": 0.5, "else": 1}))
    assert profile_points(file) == Measured(verify_ms=((1, 4.25), (4, 4.6)), draft_step_ms=0.5)


def test_a_measured_draft_step_is_met():
    draft, place = make_draft(KIMI, DraftKind.EAGLE3, bits=16), Placed()
    measured = Measured(verify_ms=((1, 10.0),), draft_step_ms=2.5)
    free = own_draft(measured, draft, PCIE, place, Free())
    assert draft_forward_ms(draft, PCIE, Load(requests=1, rows=1), place, free)[0] == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4:16", r"lacks V\(1\)"),
        ("1-3", "ROWS:MS"),
        ("1:0", "above zero"),
        ("1:2,1:3", "each stands once"),
        ("1:nan", "above"),
    ],
)
def test_points_that_say_nothing_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        typed_points(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "holds no"),
        ("{", "is not JSON"),
        ('{"verify_curve": [{"tokens": 1}]}', "lacks"),
        ('{"verify_curve": 3}', "holds no"),
    ],
)
def test_a_file_without_a_curve_is_refused(tmp_path: Path, text, words):
    file = tmp_path / "profile.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=words):
        profile_points(file)
