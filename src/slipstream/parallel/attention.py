"""Time as a watchdog may count it: seconds in which it was awake. What it slept through says nothing of the others."""

from slipstream.telemetry.clock import Clock


class Attention:
    """A clock that counts at most `longest_s` from one look to the next."""

    def __init__(self, clock: Clock, longest_s: float) -> None:
        self._clock, self._longest_s = clock, longest_s
        self._last = clock.now()
        self._now = 0.0

    def look(self) -> tuple[float, float]:
        """The time by this clock, and the seconds by the other one since the last look."""
        last, self._last = self._last, self._clock.now()
        passed = self._last - last
        self._now += min(passed, self._longest_s)
        return self._now, passed
