"""Cycles as spans, and as traces that nest."""

import json
from pathlib import Path

import pytest

from slipstream.bench.spans import ACCEPT, DRAFT, EXTEND, HOST, VERIFY, Call, CycleTimes, label_at, spans_between
from slipstream.bench.trace import COMMUNICATION, write_trace
from tests.unit.bench.traces import events_of, nesting

POINTS = [
    (HOST, 0.0),
    (HOST, 0.1),
    (EXTEND, 0.2),
    ("draft 1", 0.5),
    ("draft 2", 0.7),
    (VERIFY, 1.0),
    (ACCEPT, 3.0),
]


def cycle(began_s: float = 0.0) -> CycleTimes:
    calls = (
        Call(label=VERIFY, role="target", op="all_reduce", name="mlp", num_bytes=8, begin_ms=1.5, end_ms=1.75),
        Call(label="draft 2", role="draft", op="all_reduce", name="mlp", num_bytes=8, begin_ms=0.7, end_ms=0.8),
    )
    spans = (*spans_between(POINTS, 3.25), *spans_between([(HOST, 3.25)], 3.5))
    return CycleTimes(began_s=began_s, wall_ms=3.5, spans=spans, calls=calls)


def test_a_stage_lasts_until_the_next_is_entered() -> None:
    spans = spans_between([POINTS[-1], *POINTS[:-1]], 3.25)  # captured points come after live ones
    assert [(span.label, span.begin_ms, span.end_ms) for span in spans] == [
        (HOST, 0.0, 0.2),
        (EXTEND, 0.2, 0.5),
        ("draft 1", 0.5, 0.7),
        ("draft 2", 0.7, 1.0),
        (VERIFY, 1.0, 3.0),
        (ACCEPT, 3.0, 3.25),
    ]
    assert sum(span.ms for span in spans) == 3.25


def test_a_moment_lies_in_the_stage_that_has_begun() -> None:
    spans = spans_between(POINTS, 3.25)
    assert [label_at(spans, at) for at in (0.2, 0.69, 0.7, 3.24, 9.0)] == [EXTEND, "draft 1", "draft 2", ACCEPT, HOST]


def test_all_spans_and_collectives_of_a_stage_add_up() -> None:
    found = cycle()
    assert found.stage_ms(HOST) == 0.2 + 0.25
    assert found.communication_ms(VERIFY) == 0.25
    assert found.communication_ms(EXTEND) == 0


def test_a_trace_nests_and_does_not_overlap(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    write_trace(file, [cycle(), cycle(began_s=0.0035)], title="two cycles")
    events = events_of(json.loads(file.read_text()))
    parents = nesting(events)
    names = {(child["name"], parent["name"] if parent else None) for child, parent in parents}
    stages = {(name, "cycle 0") for name in (HOST, EXTEND, DRAFT, VERIFY, ACCEPT)}
    assert stages <= names
    assert {("cycle 0", None), ("cycle 1", None), ("draft 1", DRAFT), ("draft 2", DRAFT)} <= names
    assert {(COMMUNICATION, VERIFY), (COMMUNICATION, "draft 2")} <= names


def test_an_overlap_is_noticed() -> None:
    first = {"name": "a", "ts": 0.0, "dur": 2.0}
    second = {"name": "b", "ts": 1.0, "dur": 2.0}
    with pytest.raises(AssertionError, match="overlaps"):
        nesting([first, second])
