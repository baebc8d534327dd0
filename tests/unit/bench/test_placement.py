"""The arithmetic of placements, and a sweep over two gloo ranks."""

import json
from pathlib import Path

import pytest

from slipstream.bench.placement import Case, Found, Load, Point, accept_length, merged
from slipstream.bench.placement_sums import communication_ms, differences, even_at_us, measured_even_at_us, winners
from slipstream.cli.main import main
from slipstream.cli.placement_tables import flip_lines
from slipstream.parallel.instrument import LedgerRow

ACCEPTANCE = (0.7, 0.62, 0.57, 0.53, 0.5)
CUT, WHOLE = Case(place="tp 2", steps=3), Case(place="replicated", steps=3)
PLAIN = Case(place="plain", steps=0)
DELAYS = (0.0, 50.0, 100.0)


def row(op: str, name: str, count: int, num_bytes: int = 0, role: str = "target") -> LedgerRow:
    return LedgerRow(stage="", role=role, op=op, name=name, count=count, num_bytes=num_bytes)


VERIFY = (row("all_reduce", "mlp", 64, 64 * 32_768), row("all_gather", "best token", 1, 32))
DRAFT = (row("all_reduce", "mlp", 9, 9 * 8192, role="draft"), row("all_gather", "best token", 3, 24, role="draft"))
LOADS = {
    CUT: Load(collectives=(*DRAFT, *VERIFY), weight_bytes=1_000_000_000),
    WHOLE: Load(collectives=VERIFY, weight_bytes=3_000_000_000),
    PLAIN: Load(collectives=VERIFY, weight_bytes=0),
}
CYCLES_MS = {CUT: (4.0, 7.8, 11.6), WHOLE: (4.4, 7.6, 10.8), PLAIN: (3.0, 6.2, 9.4)}


def found() -> Found:
    """The cut draft reads 2 GB less, half a millisecond at 4 TB/s, and sends 12 more."""
    points = [
        Point(
            case=case,
            batch=1,
            inject_us=us,
            cycle_ms=cycle,
            spread_ms=0.1,
            draft_ms=0.5,
            accept_length=accept_length(case.steps, ACCEPTANCE),
            num_cycles=16,
        )
        for case, cycles in CYCLES_MS.items()
        for us, cycle in zip(DELAYS, cycles, strict=True)
    ]
    ways = ((8192, 6.0), (32_768, 7.0))
    return Found(points=points, loads=LOADS, bytes_per_s=4e12, all_reduce_us=ways, backend_us=10.0)


def test_accept_length_adds_up_what_every_position_passes() -> None:
    assert accept_length(0, ACCEPTANCE) == 1
    assert accept_length(1, ACCEPTANCE) == pytest.approx(1.7)
    assert accept_length(3, ACCEPTANCE) == pytest.approx(1 + 0.7 + 0.434 + 0.24738)
    assert accept_length(3, (0.5,)) == pytest.approx(1.875)


def test_communication_is_every_collective_at_its_own_latency() -> None:
    assert communication_ms(LOADS[WHOLE], found(), batch=1, inject_us=0) == pytest.approx((64 * 7 + 10) / 1e3)
    assert communication_ms(LOADS[CUT], found(), batch=1, inject_us=50) == pytest.approx(
        (64 * 7 + 10 + 9 * 6 + 3 * 10 + 77 * 50) / 1e3
    )


def test_a_difference_is_collectives_more_and_weights_less() -> None:
    rows = differences(found(), beside="replicated", batch=1)
    assert [each.num_collectives for each in rows] == [12, 12, 12]
    assert [each.weights_ms for each in rows] == pytest.approx([-0.5] * 3)
    assert [each.predicted_ms for each in rows] == pytest.approx([-0.416, 0.184, 0.784])
    assert [each.measured_ms for each in rows] == pytest.approx([-0.4, 0.2, 0.8])
    assert even_at_us(rows) == pytest.approx(416 / 12)
    assert measured_even_at_us(rows) == pytest.approx(50 * 0.4 / 0.6)


def test_the_winner_flips_where_the_wire_gets_slow() -> None:
    assert [point.case for point in winners(found(), 1).values()] == [CUT, WHOLE, WHOLE]
    told = "\n".join(flip_lines(found()))
    assert "bs 1 wins: tp 2, K 3 at 0 us; replicated, K 3 at 50, 100 us" in told
    assert "K 0 has 0.42x the tokens for 0.75x the cycle" in told


def test_collectives_are_counted_whatever_stage_the_host_was_in() -> None:
    rows = [
        LedgerRow(stage=stage, role="draft", op="all_reduce", name="mlp", count=1, num_bytes=8) for stage in ("a", "b")
    ]
    assert merged(rows) == (row("all_reduce", "mlp", 2, 16, role="draft"),)


def test_a_sweep_over_two_ranks_counts_and_times_every_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "points.jsonl"
    arguments = ["bench", "placement", "--device", "cpu", "--shape", "tiny", "--tp", "2", "--steps", "0,2"]
    arguments += ["--inject-us", "0,200", "--batch", "1", "--cycles", "2", "--rounds", "1", "--out", str(file)]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code in (None, 0)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    counts = {each["placement"]: (each["collectives"], each["collectives_of_drafting"]) for each in rows}
    assert counts == {"plain": (18, 0), "tp 1": (19, 1), "tp 2": (26, 8), "replicated": (18, 0)}
    assert len(rows) == 2 + 3 * 2
    assert all(each["cycle_ms"] > 0 and (each["draft_ms"] > 0) == (each["steps"] > 0) for each in rows)
    assert all(each["accept_length"] == pytest.approx(2.134) for each in rows if each["steps"])
    printed = capsys.readouterr().out
    assert "bs 1 wins:" in printed
    assert "more collectives x (latency + injected)" in printed


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--shape", "huge", "no shape is called huge"),
        ("--steps", "1,two", "--steps is numbers with commas"),
        ("--inject-us", "-1", "each lies between 0 and 1000000"),
        ("--placements", "3", "--placements 3 is not possible"),
        ("--device", "tpu", "--device is cuda or cpu"),
        ("--model", "somewhere", "--model and --draft go together"),
    ],
)
def test_what_cannot_be_swept_is_said(
    option: str, value: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "placement", "--device", "cpu", option, value])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
