"""Measured cycles as a trace that ui.perfetto.dev and chrome://tracing open: complete events, nested by their times."""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from slipstream.bench.spans import DRAFT, CycleTimes, Span, is_draft

RANK, LINE = 0, 1  # the process and thread under which a trace shows them
COMMUNICATION = "communication"


def write_trace(path: Path, cycles: Sequence[CycleTimes], *, title: str) -> None:
    """Write the cycles, one after the other, as Chrome trace events."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": trace_events(cycles, title=title)}))


def trace_events(cycles: Sequence[CycleTimes], *, title: str) -> list[dict[str, Any]]:
    """A span a cycle; within it its stages, within draft its steps, within each its collectives."""
    names = (("process_name", title), ("thread_name", "rank 0"))
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": kind, "pid": RANK, "tid": LINE, "args": {"name": name}} for kind, name in names
    ]
    first_s = cycles[0].began_s if cycles else 0.0
    for number, cycle in enumerate(cycles):
        offset_ms = (cycle.began_s - first_s) * 1e3
        last_ms = max(cycle.wall_ms, *(span.end_ms for span in cycle.spans))
        events.append(_event(f"cycle {number}", offset_ms, 0.0, last_ms))
        events += [_event(span.label, offset_ms, span.begin_ms, span.end_ms) for span in _nested(cycle.spans)]
        for call in cycle.calls:
            details = {"name": call.name, "of": call.role, "op": call.op, "bytes": call.num_bytes}
            events.append(_event(COMMUNICATION, offset_ms, call.begin_ms, call.end_ms, details))
    return events


def _nested(spans: Iterable[Span]) -> Iterable[Span]:
    """The stages, the steps of the draft below one span of all of them."""
    for draft, group in groupby(spans, key=lambda span: is_draft(span.label)):
        run = list(group)
        if draft:
            yield Span(label=DRAFT, begin_ms=run[0].begin_ms, end_ms=run[-1].end_ms)
        yield from run


def _event(
    name: str, offset_ms: float, begin_ms: float, end_ms: float, details: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Whole nanoseconds, so that what nests still does when it has been written."""
    begin_ns, end_ns = round((offset_ms + begin_ms) * 1e6), round((offset_ms + end_ms) * 1e6)
    event = {"ph": "X", "name": name, "pid": RANK, "tid": LINE, "ts": begin_ns / 1e3, "dur": (end_ns - begin_ns) / 1e3}
    return event if details is None else {**event, "args": details}
