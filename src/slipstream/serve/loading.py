"""Load an LLM and say how far it is, at most ten times a second."""

from slipstream.config.placement import Placement
from slipstream.serve.llm import LLM
from slipstream.serve.messages import Load, Loading
from slipstream.serve.wire import EngineWire
from slipstream.telemetry.clock import Clock

TELL_S = 0.1
WEIGHTS, PLACING = "loading weights", "timing the draft's placement"


class Progress:
    """Counts what was loaded."""

    def __init__(self, wire: EngineWire, clock: Clock) -> None:
        self._wire, self._clock = wire, clock
        self._num_bytes, self._next_s = 0, 0.0

    def loaded(self, num_bytes: float) -> None:
        """A tensor is in its place."""
        self._num_bytes += int(num_bytes)
        if self._clock.now() >= self._next_s:
            self._next_s = self._clock.now() + TELL_S
            self._wire.send(Loading(stage=WEIGHTS, num_bytes=self._num_bytes))

    def trial(self, placement: Placement) -> None:
        """A placement is going to be timed."""
        self._wire.send(Loading(stage=f"{PLACING}: {placement}", num_bytes=self._num_bytes))


def load(wire: EngineWire, order: Load) -> LLM:
    """Load.

    Raises:
        ValueError, GroupError: as LLM.
    """
    progress = Progress(wire, Clock())
    wire.send(Loading(stage=WEIGHTS))
    return LLM(**order.settings, draft_wiring=order.draft_wiring, on_load=progress.loaded, on_trial=progress.trial)
