"""What drafts usually reach: conditional acceptance by kind, for rows that state no accept length."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.plan.accept import chain_length, constant_p
from slipstream.plan.drafts import DraftKind
from slipstream.plan.points import Point

SOURCES_OF_BELIEF = 2  # how many sources the mean of all kinds counts as
REJECTED = 1.02  # an accept length below was forced, or the draft was not the target's


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """Conditional acceptance by kind of draft; `other` where a kind was never seen."""

    by_kind: Mapping[DraftKind, float]
    other: float

    def length(self, kind: DraftKind, steps: int) -> float:
        """Accept length of so many steps."""
        if kind is DraftKind.FREE:
            return steps + 1.0  # saved outputs of the target itself
        return chain_length(self.by_kind.get(kind, self.other), steps)


def usual(points: Sequence[Point]) -> Usual:
    """Learn from points whose accept length is stated: the median of each source, each source once, kinds shrunk."""
    seen: dict[DraftKind, dict[str, list[float]]] = {}
    for point in points:
        length = point.accept_length
        if length is None or not REJECTED < length < point.steps + 1 or "steps" in point.assumed:
            continue
        seen.setdefault(point.draft.kind, {}).setdefault(point.source, []).append(constant_p(length, point.steps))
    medians = {kind: [statistics.median(each) for each in found.values()] for kind, found in seen.items()}
    every = [value for values in medians.values() for value in values]
    other = statistics.median(every) if every else 0.6
    by_kind = {
        kind: (SOURCES_OF_BELIEF * other + sum(values)) / (SOURCES_OF_BELIEF + len(values))
        for kind, values in medians.items()
    }
    return Usual(by_kind=by_kind, other=other)


def length_of(point: Point, found: Usual) -> float:
    """A point's accept length: as stated, else the usual one."""
    return found.length(point.draft.kind, point.steps) if point.accept_length is None else point.accept_length
