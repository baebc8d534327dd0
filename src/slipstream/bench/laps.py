"""When a cycle enters its stages: on a GPU when the stream gets there, on a CPU when the host does."""

import time

import torch

from slipstream.parallel.stamps import Stage
from slipstream.runner.cycle import Marks


class Laps:
    """Passes marks on and remembers when they were made; on a GPU by events, so that nothing waits."""

    def __init__(self, inner: Marks, device: torch.device) -> None:
        self.inner, self._on_gpu = inner, device.type == "cuda"
        self._marks: list[tuple[Stage, float | torch.cuda.Event]] = []

    def mark(self, stage: Stage) -> None:
        """Enter a stage."""
        self.inner.mark(stage)
        if not self._on_gpu:
            self._marks.append((stage, time.perf_counter()))
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((stage, event))

    def take(self) -> float:
        """Milliseconds of the cycle that has ended, from its first mark until it verified; begins anew."""
        marks, self._marks = self._marks, []
        began, verified = marks[0][1], next(when for stage, when in marks if stage is Stage.VERIFY)
        if isinstance(began, torch.cuda.Event) and isinstance(verified, torch.cuda.Event):
            verified.synchronize()  # sync: between two timed cycles
            return began.elapsed_time(verified)
        assert isinstance(began, float), "all marks of a device are of one kind"
        assert isinstance(verified, float), "the same"
        return (verified - began) * 1e3
