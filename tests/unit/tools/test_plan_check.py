"""`make plan-check`: bounds decide its exit code, and other files are judged as the published ones are."""

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.plan.check import Score
from tools import plan_check

GOOD = Score(num_points=20, num_losses=9, balanced_accuracy=0.9, median_error=0.1, blind_error=0.2, held=0.8)
COLUMNS = plan_check.POINTS.read_text(encoding="utf-8").splitlines()[0]


@pytest.mark.parametrize(
    ("changed", "missed"),
    [({}, ""), ({"balanced_accuracy": 0.8}, "(a)"), ({"median_error": 0.13}, "(b)"), ({"held": 0.95}, "(c)")],
)
def test_each_bound_is_of_its_own_number(changed, missed):
    lines = plan_check.bounds(replace(GOOD, **changed))
    assert [line[:3] for ok, line in lines if not ok] == ([missed] if missed else [])


def test_gains_alone_are_not_judged_by_how_they_are_told_from_losses():
    assert [line[:3] for _, line in plan_check.bounds(replace(GOOD, balanced_accuracy=float("nan")))] == ["(b)", "(c)"]


def test_a_file_that_cannot_be_read_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]):
    assert plan_check.main(["--points", "/no/such/file"]) == 2
    assert capsys.readouterr().err == "error: there is no file /no/such/file\n"


@pytest.mark.slow
def test_points_of_another_file_are_predicted_and_what_they_lack_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "points.csv"
    rows = [
        "one,someone/new#1,RTX 4090,1,,Qwen3-8B,8.2,8.2,16,EAGLE3,1,3,1,4,2.5,55,100,1.82,",
        "two,other/x,FooBar 9,1,,Mystery-12B,12,12,16,,1,,,,,,,0.9,",
    ]
    file.write_text("\n".join([COLUMNS, *rows]) + "\n")
    assert plan_check.main(["--points", str(file)]) in (0, 1)
    out = capsys.readouterr().out
    assert "2 points of 2 sources" in out
    assert "1 rows do not state their hardware" in out


@pytest.mark.slow
def test_the_published_files_hold_every_bound(capsys: pytest.CaptureFixture[str]):
    assert plan_check.main([]) == 0
    assert "accept length stated: shown, does not decide" in capsys.readouterr().out
