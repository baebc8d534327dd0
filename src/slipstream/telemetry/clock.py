"""Time as an argument: what measures or waits is handed a clock, and a test hands it one that stands still."""

import time
from types import TracebackType
from typing import Self


class Clock:
    """Seconds that only grow, from an arbitrary start."""

    def now(self) -> float:
        return time.perf_counter()


class ManualClock(Clock):
    """A clock that moves only when told to."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock cannot run back by {-seconds} seconds")
        self._now += seconds


class Stopwatch:
    """Time a block: `with Stopwatch(clock) as watch: ...`, then `watch.seconds`. It can be read while it runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started: float | None = None
        self._stopped: float | None = None

    def __enter__(self) -> Self:
        self._started, self._stopped = self._clock.now(), None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped = self._clock.now()

    @property
    def seconds(self) -> float:
        if self._started is None:
            return 0.0
        return (self._clock.now() if self._stopped is None else self._stopped) - self._started
