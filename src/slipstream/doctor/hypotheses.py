"""Try every hypothesis about a draft's wiring on the same evidence, and follow what is surely better.

The declared wiring and every wiring that differs from it by one thing are scored. If one is surely better, it becomes
the one to compare with, so that two mistakes are found one after the other. A control, fed the states of other text,
tells whether the draft reads this target at all.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from slipstream.config.draft import MapReading
from slipstream.doctor.checkpoint import Patient
from slipstream.doctor.compare import Difference, difference
from slipstream.doctor.evidence import Evidence
from slipstream.doctor.score import Drafted, Score, score, unrolled
from slipstream.doctor.wiring import DECLARED, Hypothesis, Wiring, alternatives

MAX_ROUNDS = 3
CONTROL = "states of other text (control)"

Trial = Callable[[Wiring, bool], Score | None]  # wiring, of other text -> numbers; None where it cannot be tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A hypothesis with its numbers."""

    round: int  # from 1
    hypothesis: Hypothesis
    score: Score | None  # None: it cannot be tried, since the map leads out of the vocabulary
    difference: Difference | None  # to the round's first row


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Everything that was tried."""

    rounds: tuple[tuple[Row, ...], ...]  # the first row of each is what the others are compared with
    changes: tuple[Row, ...]  # what was surely better, one a round
    ties: tuple[Row, ...]  # of the last change: rows that are not surely worse than it
    control: Row

    @property
    def best(self) -> Row:
        """The wiring that was settled on."""
        return self.changes[-1] if self.changes else self.rounds[0][0]


def trial_of(patient: Patient, evidence: Evidence) -> Trial:
    """Score wirings of one draft on one evidence."""

    @lru_cache(maxsize=1)  # wirings that differ by the map alone come one after the other
    def drafted(wiring: Wiring, of_other_text: bool) -> Drafted:
        features_RF = evidence.features(wiring.layers, of_other_text=of_other_text)
        return unrolled(evidence, patient.wired(wiring), features_RF, shift=int(wiring.shifted))

    def trial(wiring: Wiring, of_other_text: bool) -> Score | None:
        if wiring.map_reading not in patient.choices.maps:
            return None
        found = drafted(replace(wiring, map_reading=MapReading.FIRST), of_other_text)
        return score(evidence, found, patient.map_of(wiring), vocab_size=patient.target.config.vocab_size)

    return trial


def search(patient: Patient, trial: Trial, *, on_trial: Callable[[str], None] = lambda name: None) -> Search:
    """Score hypotheses until none is surely better.

    trial: gives a wiring's numbers; see `trial_of`.
    """
    base = Hypothesis(name=DECLARED, aspect=None, wiring=patient.declared)
    rounds: list[tuple[Row, ...]] = []
    changes: list[Row] = []
    ties: tuple[Row, ...] = ()
    on_trial(base.name)
    known = trial(base.wiring, False)  # noqa: FBT003
    for number in range(1, MAX_ROUNDS + 1):
        settled = frozenset(row.hypothesis.aspect for row in changes if row.hypothesis.aspect is not None)
        rows = [Row(round=number, hypothesis=base, score=known, difference=None)]
        for each in alternatives(base.wiring, patient.choices, leave=settled):
            on_trial(each.name)
            rows.append(_row(number, each, trial(each.wiring, False), known))  # noqa: FBT003
        rounds.append(tuple(rows))
        best = _surely_better(rows)
        if best is None:
            break
        ties = tuple(row for row in rows[1:] if row is not best and _ties(row, best))
        changes.append(best)
        base, known = best.hypothesis, best.score
    on_trial(CONTROL)
    control = Hypothesis(name=CONTROL, aspect=None, wiring=base.wiring)
    return Search(
        rounds=tuple(rounds),
        changes=tuple(changes),
        ties=ties,
        control=_row(len(rounds), control, trial(base.wiring, True), known),  # noqa: FBT003
    )


def _row(number: int, hypothesis: Hypothesis, found: Score | None, base: Score | None) -> Row:
    compared = None if found is None or base is None else difference(found, base)
    return Row(round=number, hypothesis=hypothesis, score=found, difference=compared)


def _surely_better(rows: list[Row]) -> Row | None:
    """The best row, if it is surely better than the first; anything is better than what cannot be tried."""
    scored = [row for row in rows[1:] if row.score is not None]
    if not scored:
        return None
    best = min(scored, key=_cross_entropy)
    if rows[0].score is None or (best.difference is not None and best.difference.better):
        return best
    return None


def _cross_entropy(row: Row) -> float:
    assert row.score is not None, "only rows with numbers are sorted"
    return row.score.cross_entropy


def _ties(row: Row, best: Row) -> bool:
    if row.score is None or best.score is None or row.hypothesis.wiring == best.hypothesis.wiring:
        return False
    return not difference(row.score, best.score).worse
