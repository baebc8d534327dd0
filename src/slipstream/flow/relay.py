"""What a host loop and its rank 0 say to each other where they are two processes. Plain values only."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any


class Question(Enum):
    """What the host loop may ask."""

    ORDER = auto()  # the value is an order; all results are wanted
    CHECK = auto()  # the value is a cycle's shape
    HAS_DRAFT = auto()


class Kind(Enum):
    """How a reply is meant."""

    RESULT = auto()
    LOADED = auto()  # the bytes of a tensor; the result is still to come
    REFUSED = auto()  # a ValueError's sentence
    BROKEN = auto()  # any other exception of one rank alone, which lives on
    ENDED = auto()  # a GroupError's sentence; also said unasked


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """From the host loop."""

    question: Question
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """From rank 0."""

    kind: Kind
    value: Any = None
