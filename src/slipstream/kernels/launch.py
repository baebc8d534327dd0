"""How kernels are launched: one place for the interpreter and for programmatic dependent launch."""

import os
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # set before triton is imported: kernels run without a GPU
WARP_OPTIONS = ("num_warps", "num_stages", "launch_pdl")

HOPPER_SHARED_BYTES = 227 << 10
WARPGROUPS, HOPPER = (9, 10), 9  # major compute capabilities


@lru_cache
def shared_bytes(device: torch.device) -> int:
    """Shared memory that one program may take on a device; it sets how deep loads are pipelined, never a bit."""
    if device.type != "cuda":
        return HOPPER_SHARED_BYTES
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


@lru_cache
def generation(device: torch.device) -> int:
    """A device's major compute capability; Hopper's without one, where kernels are interpreted or only compiled."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else HOPPER


def has_warpgroups(device: torch.device) -> bool:
    """Whether matrix instructions are a warpgroup's, as on Hopper and data-centre Blackwell: then a tile lies in
    registers alike whatever its rows, and what is computed from it in whatever layout has the same bits.
    """
    return generation(device) in WARPGROUPS


def is_hopper(device: torch.device) -> bool:
    """Whether matrix instructions read registers, and a program's sums lie there, as only Hopper's warpgroups do."""
    return generation(device) == HOPPER


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Launch a kernel on a grid; the interpreter gets no compile options.

    args: the kernel's positional arguments. options: its constexpr arguments, and num_warps, num_stages, launch_pdl.
    """
    if INTERPRETED:
        options = {name: value for name, value in options.items() if name not in WARP_OPTIONS}
        options.update({"PDL": False} if "PDL" in options else {})  # it runs one kernel after another
    kernel[grid](*args, **options)


def power_of_two(count: int, *, least: int = 1) -> int:
    """The lowest power of two that is no less than count and least."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def compiled_for(x: Tensor) -> bool:
    """Whether kernels can run on this tensor: on a CUDA device, or anywhere under the interpreter."""
    return INTERPRETED or x.device.type == "cuda"


def empty_like_rows(x: Tensor, num_rows: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised [num_rows, width] beside x."""
    return torch.empty(num_rows, width, device=x.device, dtype=x.dtype if dtype is None else dtype)


def assert_rows(*tensors: Tensor | None) -> None:
    """Kernels address tensors row by row."""
    for tensor in tensors:
        assert tensor is None or tensor.is_contiguous(), "tensors of kernels lie row by row"
