"""Where a rank is: the cycle it works on and the last stage it reached, readable from outside at any time."""

import time
from collections.abc import Sequence
from enum import IntEnum

from slipstream.parallel.page import Page

HOST, DEVICE = 0, 2  # where their cycle is found on the page; the stage is beside it
ON_DEVICE = 4  # whether the device's is the one that counts
NUM_INTEGERS = 5


class Stage(IntEnum):
    """The parts of a rank's life, in the order of a cycle. IDLE is the only one that may last for ever."""

    IDLE = 0
    MEET = 1  # making the groups
    LOAD = 2
    PREFILL = 3
    EXTEND = 4
    PROPOSE = 5
    VERIFY = 6
    ACCEPT = 7


class Stamps:
    """Written by the main thread; read by the watchdog's, and by the other ranks of the machine when this one is lost.

    On a CPU a stage is reached when it is marked.
    """

    def __init__(self) -> None:
        self.page = Page(NUM_INTEGERS)
        self._integers = self.page.integers
        self._active = False
        self._num_marks = 0
        self._seconds = [0.0] * len(Stage)
        self._entered: tuple[Stage, float] = (Stage.IDLE, time.perf_counter())

    def begin(self, cycle: int) -> None:
        """Open a cycle: from here until IDLE is marked the rank owes progress."""
        self._integers[HOST] = cycle
        self._active = True
        self._num_marks += 1

    def mark(self, stage: Stage) -> None:
        """Enter a stage. Mark the same one again to show progress within it: a chunk, a loaded file."""
        (left, since), now = self._entered, time.perf_counter()
        self._seconds[left] += now - since
        self._entered = (stage, now)
        self._integers[HOST + 1] = stage
        self._active = stage is not Stage.IDLE
        self._num_marks += 1

    def read(self) -> tuple[int, Stage]:
        """The cycle and the last stage that was reached."""
        return position(self._integers)

    def seconds(self) -> dict[Stage, float] | None:
        """How long this rank has been in each stage that is over; None where the marks say when work is queued."""
        return dict(zip(Stage, self._seconds, strict=True))

    @property
    def active(self) -> bool:
        """Whether the rank is at work, and so must move."""
        return self._active

    def progress(self) -> tuple[int, ...]:
        """Numbers of which at least one changes whenever the rank gets on."""
        return self._num_marks, *self._integers


def position(integers: Sequence[int]) -> tuple[int, Stage]:
    """Read a page: the cycle and the last stage that was reached."""
    place = DEVICE if integers[ON_DEVICE] else HOST
    return integers[place], Stage(integers[place + 1])
