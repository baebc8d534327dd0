"""Stamps of a rank on a CUDA device: the stage is the one its stream has reached, not the one the host has queued."""

import torch
from torch import Tensor

from slipstream.parallel.stamps import Stage, Stamps

_CYCLE, _STAGE = 0, 1  # places in the pinned memory


class DeviceStamps(Stamps):
    """The stream itself writes what it has reached into pinned host memory, 8 bytes a mark.

    mark() may be captured in a CUDA graph, and every replay then writes again. begin() may not, because a graph would
    repeat its number for ever: call it before each replay. A graph runs no Python: mark IDLE after the last one.
    Reading touches host memory only: no CUDA call, no torch.
    """

    def __init__(self, device: torch.device) -> None:
        """Allocate the constants and the pinned memory; needs the device, so call it on the main thread."""
        super().__init__()
        self._constants = torch.arange(len(Stage), dtype=torch.int64, device=device).split(1)
        self._cycle_on_device = torch.zeros(1, dtype=torch.int64, device=device)
        self._reached: Tensor = torch.zeros(2, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._cycle_slot, self._stage_slot = self._reached.split(1)
        self._view = self._reached.numpy()  # the same memory

    def begin(self, cycle: int) -> None:
        """Open a cycle, and let the stream say so when it gets there."""
        super().begin(cycle)
        self._cycle_on_device.fill_(cycle)
        self._cycle_slot.copy_(self._cycle_on_device, non_blocking=True)

    def mark(self, stage: Stage) -> None:
        """Enter a stage on the host, and let the current stream say so when it gets there."""
        super().mark(stage)
        self._stage_slot.copy_(self._constants[stage], non_blocking=True)

    def read(self) -> tuple[int, Stage]:
        """The cycle and the stage that the device has reached."""
        return int(self._view[_CYCLE]), Stage(int(self._view[_STAGE]))

    @property
    def active(self) -> bool:
        """Whether the host or the device is at work."""
        return self._active or int(self._view[_STAGE]) != Stage.IDLE

    def progress(self) -> tuple[int, ...]:
        """The host's numbers and the device's."""
        return *super().progress(), int(self._view[_CYCLE]), int(self._view[_STAGE])
