"""What an examination finds: a grade, one sentence, and what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Grade(Enum):
    """How well something is; the order is from well to ill."""

    HEALTHY = "healthy"
    WARNING = "warning"
    BROKEN = "broken"

    @property
    def exit_code(self) -> int:
        """What the command line ends with: 0, 1 or 2."""
        return list(Grade).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    grade: Grade
    says: str  # one sentence
    remedy: str = ""  # empty where there is nothing to do


def healthy(name: str, says: str) -> Finding:
    """A finding that is well."""
    return Finding(name=name, grade=Grade.HEALTHY, says=says)


def warning(name: str, says: str, remedy: str) -> Finding:
    """A finding that may cost speed or acceptance."""
    return Finding(name=name, grade=Grade.WARNING, says=says, remedy=remedy)


def broken(name: str, says: str, remedy: str) -> Finding:
    """A finding with which the draft cannot work."""
    return Finding(name=name, grade=Grade.BROKEN, says=says, remedy=remedy)


def worst(grades: Iterable[Grade]) -> Grade:
    """The worst of several grades; healthy if there are none."""
    return max(grades, key=lambda grade: grade.exit_code, default=Grade.HEALTHY)
