"""How near loading comes to what the storage gives: the same files, out of nobody's cache, in turns.

The storage's rate is the best of a few ways to read the files from end to end into memory that is used again. The host
of a virtual machine may have taken back memory that lay free, and giving it out anew can be slower than the storage,
so as much as a run may need is touched before each.
"""

import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from slipstream.config.hf import model_config
from slipstream.models.registry import entry_of
from slipstream.parallel.cut import check_heads
from slipstream.parallel.group import SoloGroup
from slipstream.weights.cut import cut_table
from slipstream.weights.folder import read_config
from slipstream.weights.names import NameTable
from slipstream.weights.placing import read_parameters
from slipstream.weights.reader import SAFETENSORS, open_source

MB = 1 << 20
PAGE = 4096
DIRECT = getattr(os, "O_DIRECT", 0)
METHODS = ((1, 4 * MB, 0), (2, 4 * MB, 0), (4, 16 * MB, DIRECT))  # threads, bytes a read, flags


class FirstOf(SoloGroup):
    """Rank 0 of several, for as long as it asks nothing of the others."""

    def __init__(self, size: int) -> None:
        self.size: int = size


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Stored bytes a second, one number a round."""

    storage: Mapping[str, tuple[float, ...]]  # by way of reading
    loads: Mapping[str, tuple[float, ...]]  # by share and dtype


def measure(
    path: Path,
    *,
    sizes: Sequence[int],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    rounds: int,
    on_run: Callable[[], None] = lambda: None,
) -> Found:
    """Read and load in turns; sizes: over how many ranks the target is cut, of which rank 0 loads its share.

    Raises:
        ValueError: the folder has no .safetensors files, or cannot be cut over so many ranks.
    """
    files = sorted(path.glob(f"*{SAFETENSORS}"))
    if not files:
        raise ValueError(f"{path} has no {SAFETENSORS} files; give the folder of a model that does")
    storage = {
        f"{threads} x {chunk // MB} MB{', direct' if flags else ''}": _reading(files, threads, chunk, flags)
        for threads, chunk, flags in METHODS
    }
    loads = {
        f"rank 0 of {size}, {str(dtype).removeprefix('torch.')}": _loading(path, files, size, device, dtype)
        for size in sizes
        for dtype in dtypes
    }
    runs = [*storage.items(), *loads.items()]
    rates: dict[str, list[float]] = {name: [] for name, _ in runs}
    for turn in range(rounds):
        for name, run in runs[turn % len(runs) :] + runs[: turn % len(runs)]:
            forget(files)
            touch(4 * num_bytes(files))
            rates[name].append(run())
            on_run()
    return Found(
        storage={name: tuple(rates[name]) for name in storage}, loads={name: tuple(rates[name]) for name in loads}
    )


def num_bytes(files: Sequence[Path]) -> int:
    """Size of all files."""
    return sum(file.stat().st_size for file in files)


def forget(files: Sequence[Path]) -> None:
    """Have the system drop what it holds of the files."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def touch(size: int) -> None:
    """Have memory given out, then give it back."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for start in range(0, size, PAGE):
            memory[start] = 1


def _reading(files: Sequence[Path], threads: int, chunk: int, flags: int) -> Callable[[], float]:
    """Read every byte once, in order."""

    def run() -> float:
        own = threading.local()
        descriptors = [os.open(file, os.O_RDONLY | flags) for file in files]

        def read(descriptor: int, start: int) -> int:
            if not hasattr(own, "memory"):
                own.memory = mmap.mmap(-1, chunk)
            return os.preadv(descriptor, [own.memory], start)

        began = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            reads = [
                pool.submit(read, descriptor, start)
                for descriptor, file in zip(descriptors, files, strict=True)
                for start in range(0, file.stat().st_size, chunk)
            ]
            done = sum(each.result() for each in reads)
        seconds = time.perf_counter() - began
        for descriptor in descriptors:
            os.close(descriptor)
        return done / seconds

    return run


def _loading(
    path: Path, files: Sequence[Path], size: int, device: torch.device, dtype: torch.dtype
) -> Callable[[], float]:
    """Load a share; its stored bytes are its part of the files'."""
    config = model_config(read_config(path))
    check_heads(str(path), num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, size=size)
    names = entry_of(config).names(config)
    table = cut_table(names, config, FirstOf(size))
    stored_bytes = num_bytes(files) * _numel(table) / _numel(names)

    def run() -> float:
        began = time.perf_counter()
        kept = [value for _, value in read_parameters(open_source(path), table, device=device, dtype=dtype)]
        seconds = time.perf_counter() - began
        return stored_bytes / seconds if kept else 0.0

    return run


def _numel(table: NameTable) -> int:
    return sum(torch.Size(part.own_shape).numel() for parts in table.values() for part in parts)
