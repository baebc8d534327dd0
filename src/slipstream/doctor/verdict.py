"""From numbers to a verdict on the wiring; "cannot tell" is one."""

from dataclasses import dataclass
from enum import Enum

from slipstream.doctor.causes import Cause, cause_of
from slipstream.doctor.compare import CONFIDENCE, Difference
from slipstream.doctor.finding import Grade
from slipstream.doctor.hypotheses import Search

INDIFFERENT = 0.01  # nats a token: no difference that anybody would notice
OWN_TEXT = 0.05  # nats a token that a draft for this target surely gains by reading the right text's states
FOREIGN_ACCEPTANCE = 0.1  # at position 1, under the best wiring
WEAK_ACCEPTANCE = 0.3


class Outcome(Enum):
    """What the numbers say."""

    RIGHT = "right"
    WEAK = "weak"  # right, as far as can be told, but little is accepted
    INCONCLUSIVE = "inconclusive"
    WRONG = "wrong"
    FOREIGN = "another target's draft"
    UNEXAMINED = "not examined"


GRADES = {
    Outcome.RIGHT: Grade.HEALTHY,
    Outcome.WEAK: Grade.WARNING,
    Outcome.INCONCLUSIVE: Grade.WARNING,
    Outcome.WRONG: Grade.BROKEN,
    Outcome.FOREIGN: Grade.BROKEN,
    Outcome.UNEXAMINED: Grade.BROKEN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The wiring's, in words."""

    outcome: Outcome
    says: str
    causes: tuple[Cause, ...] = ()
    tied: tuple[str, ...] = ()  # hypotheses that cannot be told from the one that is named, or from the declared one

    @property
    def grade(self) -> Grade:
        """Healthy, warning or broken."""
        return GRADES[self.outcome]


def judge(found: Search, *, num_layers: int) -> Verdict:
    """Say what a search means."""
    best = found.best
    if best.score is None:
        return Verdict(outcome=Outcome.UNEXAMINED, says="no reading of the draft's vocabulary map leads anywhere")
    accepted = best.score.walk.by_position[0]
    if _is_foreign(found.control.difference, accepted):
        return Verdict(outcome=Outcome.FOREIGN, says=_foreign_says(found, accepted))
    if found.changes:
        return _wrong(found, num_layers)
    unsure = tuple(row.hypothesis.name for row in found.rounds[0][1:] if _unsure(row.difference))
    if unsure:
        says = (
            f"cannot tell the declared wiring from {' or '.join(unsure)}: their {CONFIDENCE:.0%} intervals hold 0;"
            " give more text (--num-prompts, --max-tokens)"
        )
        return Verdict(outcome=Outcome.INCONCLUSIVE, says=says, tied=unsure)
    if accepted < WEAK_ACCEPTANCE:
        says = (
            f"the wiring is the best there is, but only {accepted:.0%} is accepted at position 1: the draft is little"
            " trained, or was trained for another version of this target"
        )
        return Verdict(outcome=Outcome.WEAK, says=says)
    says = f"the wiring is right: every other one is surely worse ({CONFIDENCE:.0%} intervals)"
    return Verdict(outcome=Outcome.RIGHT, says=says)


def _is_foreign(control: Difference | None, accepted: float) -> bool:
    """Whether the best wiring gains nothing by the right text's states, or nothing that counts."""
    return accepted < FOREIGN_ACCEPTANCE or control is None or control.low < OWN_TEXT


def _foreign_says(found: Search, accepted: float) -> str:
    control = found.control.difference
    gain = "" if control is None else f", and states of other text cost it only {control.mean:+.2f} nats a token"
    return (
        f"this draft does not belong to this target: no wiring makes it guess ({accepted:.0%} accepted at position 1"
        f" under the best{gain}); choose a draft that was trained for this target"
    )


def _wrong(found: Search, num_layers: int) -> Verdict:
    base, causes = found.rounds[0][0].hypothesis.wiring, []
    for change in found.changes:
        causes.append(cause_of(change.hypothesis, base, num_layers=num_layers))
        base = change.hypothesis.wiring
    says = "the wiring is wrong: " + "; ".join(cause.says for cause in causes)
    tied = tuple(row.hypothesis.name for row in found.ties)
    if tied:
        says += f"; as likely as the last: {' or '.join(tied)}"
    return Verdict(outcome=Outcome.WRONG, says=says, causes=tuple(causes), tied=tied)


def _unsure(difference: Difference | None) -> bool:
    return difference is not None and not difference.worse and not difference.within(INDIFFERENT)
