"""A measured cycle as spans on one line of time: pure functions and the records that they fill.

A stage is named by a label: host, extend, draft 1, draft 2, ..., verify, accept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

HOST, EXTEND, DRAFT, VERIFY, ACCEPT = "host", "extend", "draft", "verify", "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One stage, without a break; milliseconds since the cycle began."""

    label: str
    begin_ms: float
    end_ms: float

    @property
    def ms(self) -> float:
        """How long it lasted."""
        return self.end_ms - self.begin_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective, as this rank saw it: waiting for the other ranks is a part of it."""

    label: str  # of the stage in which it began
    role: str  # whose group: target or draft
    op: str  # all_reduce, all_gather or broadcast
    name: str  # what the layer calls it
    num_bytes: int  # of this rank's share
    begin_ms: float
    end_ms: float

    @property
    def ms(self) -> float:
        """How long it lasted."""
        return self.end_ms - self.begin_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleTimes:
    """One cycle."""

    began_s: float  # on the host's clock
    wall_ms: float  # on the host's clock, from the end of the cycle before to its own
    spans: tuple[Span, ...]  # in order, without overlap
    calls: tuple[Call, ...]

    def stage_ms(self, label: str) -> float:
        """All spans of a stage together."""
        return sum((span.ms for span in self.spans if span.label == label), 0.0)

    def communication_ms(self, label: str) -> float:
        """All collectives that began in a stage."""
        return sum((call.ms for call in self.calls if call.label == label), 0.0)


def step_label(step: int) -> str:
    """The label of a draft step, from 1."""
    return f"{DRAFT} {step}"


def is_draft(label: str) -> bool:
    """Whether a label is of a draft step."""
    return label.startswith(f"{DRAFT} ")


def spans_between(points: Sequence[tuple[str, float]], end_ms: float) -> tuple[Span, ...]:
    """Spans from the points at which stages were entered, each until the next; neighbours of one label are joined."""
    ordered = [*sorted(points, key=lambda point: point[1]), ("", end_ms)]
    found = [
        Span(label=label, begin_ms=begin, end_ms=max(begin, end)) for (label, begin), (_, end) in pairwise(ordered)
    ]
    joined = []
    for label, group in groupby(found, key=lambda span: span.label):
        run = list(group)
        joined.append(Span(label=label, begin_ms=run[0].begin_ms, end_ms=run[-1].end_ms))
    return tuple(joined)


def label_at(spans: Iterable[Span], at_ms: float) -> str:
    """The stage that a moment lies in; host where none does."""
    return next((span.label for span in spans if span.begin_ms <= at_ms < span.end_ms), HOST)
