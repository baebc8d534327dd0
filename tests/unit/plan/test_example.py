"""The founding case: its arithmetic, and that docs/case-study.md prints the same numbers."""

import re
from pathlib import Path

import pytest

from slipstream.plan.example import PUBLISHED, READINGS, ROWS, VERIFY_MS, measurement, worked
from slipstream.plan.models import named_model

PAGE = Path(__file__).resolve().parents[3] / "docs" / "case-study.md"
KIMI = named_model("kimi-k2.5")
H1, H2 = READINGS


def test_slow_experts_alone_explain_all_that_was_seen():
    speed = {k: H1.tokens_per_s(k, tuned=True, shape=KIMI) for k in (0, 2, 5)}
    assert speed[5] == pytest.approx(PUBLISHED["K = 5"], rel=0.01)
    assert speed[2] == pytest.approx(PUBLISHED["K = 2"], rel=0.01)
    assert speed[0] == pytest.approx(PUBLISHED["plain"], rel=0.06)
    assert H1.forward_ms(6, tuned=True, shape=KIMI) == pytest.approx(VERIFY_MS[1], rel=0.01)


def test_a_fixed_verify_cost_needs_an_untuned_run_and_a_tuned_baseline():
    assert H2.tokens_per_s(5, tuned=False, shape=KIMI) == pytest.approx(PUBLISHED["K = 5"], rel=0.02)
    assert H2.tokens_per_s(0, tuned=True, shape=KIMI) == pytest.approx(PUBLISHED["plain"], rel=0.02)
    assert H2.tokens_per_s(0, tuned=False, shape=KIMI) < 0.8 * PUBLISHED["plain"]  # so 90 is no untuned figure
    best = H2.tokens_per_s(2, tuned=True, shape=KIMI, accept_length=2.4)
    assert H2.tokens_per_s(2, tuned=True, shape=KIMI) < PUBLISHED["K = 2"] < best


def test_verify_is_most_of_the_slow_cycle():
    cycle = 1e3 * 2.1 / H1.tokens_per_s(5, tuned=True, shape=KIMI)
    assert H1.forward_ms(6, tuned=True, shape=KIMI) / cycle == pytest.approx(0.95, abs=0.005)


def test_the_measurement_separates_the_readings_by_jump_and_by_slope():
    rows = worked()["readings"]
    assert isinstance(rows, list)
    assert rows[1]["first_row_ms"] > 1.8 * rows[0]["first_row_ms"]
    assert rows[0]["rise_per_row_ms"] > 1.8 * rows[1]["rise_per_row_ms"]
    assert str(rows[0]["rise_per_row_ms"]) in measurement(KIMI)


def numbers(first_cell: str) -> list[float]:
    """The numbers of the page's table row that begins so."""
    line = re.search(rf"^\| {re.escape(first_cell)} \|(.+)\|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert line, f"docs/case-study.md has no row {first_cell}"
    return [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?", line[1])]


@pytest.mark.parametrize("reading", READINGS, ids=lambda each: each.name)
def test_the_page_s_tables_are_what_the_arithmetic_gives(reading):
    curve = [round(reading.forward_ms(n, tuned=True, shape=KIMI), 1) for n in ROWS]
    assert numbers(f"{reading.name} V(n) ms") == curve
    speeds = [round(reading.tokens_per_s(k, tuned=True, shape=KIMI), 1) for k in range(6)]
    assert numbers(f"{reading.name} tok/s") == speeds
