"""The last cycles one by one, for whoever watches them: told with the reports, ten times a second."""

from collections import deque
from collections.abc import Callable

from slipstream.engine.engine import Engine
from slipstream.serve.messages import CycleTimes

MOST = 128  # cycles a report

Seconds = dict[str, float]


class RecentCycles:
    """Differences of the engine's counts from one cycle to the next."""

    def __init__(self, engine: Engine, stages: Callable[[], Seconds]) -> None:
        """stages: seconds by stage since the start."""
        self._engine, self._stages = engine, stages
        self._untold: deque[CycleTimes] = deque(maxlen=MOST)
        self._before, self._before_s = self._counts(), stages()

    def see(self) -> None:
        """A step is over; keep its cycle, if it had one."""
        now = self._counts()
        if now[0] == self._before[0]:
            return
        now_s = self._stages()
        batch, proposed, emitted = (after - before for after, before in zip(now[1:], self._before[1:], strict=True))
        spent = {stage: max(0.0, seconds - self._before_s[stage]) for stage, seconds in now_s.items()}
        self._untold.append(CycleTimes(now[0], batch, proposed, emitted, spent))
        self._before, self._before_s = now, now_s

    def take(self) -> list[CycleTimes]:
        """Those that were not told yet."""
        found = list(self._untold)
        self._untold.clear()
        return found

    def _counts(self) -> tuple[int, int, int, int]:
        totals = self._engine.totals
        return self._engine.costs.batches, totals.cycles, totals.proposed, totals.emitted
