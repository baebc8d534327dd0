"""Where a rank is: the cycle it works on and the last stage it reached, readable from another thread at any time."""

from enum import IntEnum


class Stage(IntEnum):
    """The parts of a rank's life, in the order of a cycle. IDLE is the only one that may last for ever."""

    IDLE = 0
    LOAD = 1
    PREFILL = 2
    EXTEND = 3
    PROPOSE = 4
    VERIFY = 5
    ACCEPT = 6


class Stamps:
    """Written by the main thread, read by the watchdog's. On a CPU a stage is reached when it is marked."""

    def __init__(self) -> None:
        self._cycle = 0
        self._stage = Stage.IDLE
        self._active = False
        self._num_marks = 0

    def begin(self, cycle: int) -> None:
        """Open a cycle: from here until IDLE is marked the rank owes progress."""
        self._cycle = cycle
        self._active = True
        self._num_marks += 1

    def mark(self, stage: Stage) -> None:
        """Enter a stage. Mark the same one again to show progress within it: a chunk, a loaded file."""
        self._stage = stage
        self._active = stage is not Stage.IDLE
        self._num_marks += 1

    def read(self) -> tuple[int, Stage]:
        """The cycle and the last stage that was reached."""
        return self._cycle, self._stage

    @property
    def active(self) -> bool:
        """Whether the rank is at work, and so must move."""
        return self._active

    def progress(self) -> tuple[int, ...]:
        """Numbers of which at least one changes whenever the rank gets on."""
        return self._cycle, self._stage, self._num_marks
