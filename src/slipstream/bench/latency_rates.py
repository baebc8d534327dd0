"""How fast a device reads and copies memory that no cache holds: what floors are measured by."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from slipstream.parallel.timing import time_calls

NUM_BYTES = {"cuda": 1 << 30, "cpu": 128 << 20}
CALLS = {"cuda": 10, "cpu": 1}
WIDTH = 4096
REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bytes a second of one device."""

    read: float  # the best of several ways to read
    copy: float  # read and written together


def memory_rates(device: torch.device) -> Rates:
    """Measure both; takes a second, and three times NUM_BYTES of memory at most."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    num_bytes = NUM_BYTES[device.type]
    source = torch.ones(num_bytes // dtype.itemsize // WIDTH, WIDTH, dtype=dtype, device=device)
    copied = torch.empty_like(source)
    return Rates(
        read=max(num_bytes / _seconds(each, device) for each in _readers(source)),
        copy=2 * num_bytes / _seconds(lambda: copied.copy_(source), device),
    )


def _readers(source: torch.Tensor) -> list[Callable[[], object]]:
    """Ways to read everything once: reductions, and a matrix times one row, which is what decoding does."""
    row = torch.ones(1, WIDTH, dtype=source.dtype, device=source.device)
    as_floats = source.view(torch.float32)
    return [
        lambda: F.linear(row, source),
        lambda: as_floats.sum(),
        lambda: as_floats.amax(),
        lambda: as_floats.sum(1),
    ]


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Median of a few measurements."""
    return time_calls(call, device, calls=CALLS[device.type], repeats=REPEATS) / 1e6
