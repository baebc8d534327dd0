"""Stamps of a rank on a CUDA device: the stage is the one its stream has reached, not the one the host has queued."""

import weakref

import torch

from slipstream.parallel.page import INTEGER_BYTES
from slipstream.parallel.stamps import DEVICE, NUM_INTEGERS, ON_DEVICE, Stage, Stamps


class DeviceStamps(Stamps):
    """The stream itself writes what it has reached into pinned host memory, 8 bytes a mark.

    mark() may be captured in a CUDA graph, and every replay then writes again. begin() may not, because a graph would
    repeat its number for ever: call it before each replay. A graph runs no Python: mark IDLE after the last one.
    Reading touches host memory only: no CUDA call, no torch.
    """

    def __init__(self, device: torch.device) -> None:
        """Allocate the constants and pin the page; needs the device, so call it on the main thread."""
        super().__init__()
        self._constants = torch.arange(len(Stage), dtype=torch.int64, device=device).split(1)
        self._cycle_on_device = torch.zeros(1, dtype=torch.int64, device=device)
        integers = torch.frombuffer(self.page.memory, dtype=torch.int64)
        self._cycle_slot, self._stage_slot = integers[DEVICE : DEVICE + 2].split(1)
        self._integers[ON_DEVICE] = 1
        _pin(self, integers.data_ptr())

    def begin(self, cycle: int) -> None:
        """Open a cycle, and let the stream say so when it gets there."""
        super().begin(cycle)
        self._cycle_on_device.fill_(cycle)
        self._cycle_slot.copy_(self._cycle_on_device, non_blocking=True)

    def mark(self, stage: Stage) -> None:
        """Enter a stage on the host, and let the current stream say so when it gets there."""
        super().mark(stage)
        self._stage_slot.copy_(self._constants[stage], non_blocking=True)

    def seconds(self) -> None:
        """A stage's work is queued when it is marked, and done at another time."""
        return

    @property
    def active(self) -> bool:
        """Whether the host or the device is at work."""
        return self._active or self._integers[DEVICE + 1] != Stage.IDLE


def _pin(owner: DeviceStamps, address: int) -> None:
    """Let the device write to memory that torch did not allocate, because other processes are to read it."""
    runtime = torch.cuda.cudart()
    assert runtime is not None, "torch has a CUDA runtime when it has a CUDA device"
    torch.cuda.check_error(int(runtime.cudaHostRegister(address, NUM_INTEGERS * INTEGER_BYTES, 0)))
    weakref.finalize(owner, runtime.cudaHostUnregister, address).atexit = False
