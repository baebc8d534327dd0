"""Read a Chrome trace back and see that its spans nest."""

from typing import Any

Event = dict[str, Any]


def events_of(trace: dict[str, Any]) -> list[Event]:
    """The complete events of the one thread that a profile writes."""
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len({(event["pid"], event["tid"]) for event in events}) == 1
    return events


def nesting(events: list[Event]) -> list[tuple[Event, Event | None]]:
    """Every event with the one that holds it; two that overlap without nesting are refused."""
    found: list[tuple[Event, Event | None]] = []
    open_events: list[Event] = []
    for event in sorted(events, key=lambda each: (_ns(each["ts"]), -_ns(each["dur"]))):
        while open_events and _end(open_events[-1]) <= _ns(event["ts"]):
            open_events.pop()
        if open_events:
            assert _end(event) <= _end(open_events[-1]), f"{event} overlaps {open_events[-1]}"
        found.append((event, open_events[-1] if open_events else None))
        open_events.append(event)
    return found


def _end(event: Event) -> int:
    return _ns(event["ts"]) + _ns(event["dur"])


def _ns(us: float) -> int:
    return round(us * 1e3)
