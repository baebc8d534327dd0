"""A few integers that the other processes of this machine can read, also when the one that wrote them is gone."""

import mmap
import os
import weakref

INTEGER_BYTES = 8


class Page:
    """Memory of this process, without a file: whoever opens it while the process lives keeps it."""

    def __init__(self, num_integers: int) -> None:
        """Allocate zeros."""
        self.fd = _memory_file(num_integers * INTEGER_BYTES)
        self.memory = mmap.mmap(-1 if self.fd is None else self.fd, num_integers * INTEGER_BYTES)
        self.integers = memoryview(self.memory).cast("q")
        if self.fd is not None:
            weakref.finalize(self, os.close, self.fd)


def open_page(pid: int, fd: int | None) -> memoryview | None:
    """The integers of another process's page, or None where this system or its owner does not let us."""
    if fd is None:
        return None
    try:
        with open(f"/proc/{pid}/fd/{fd}", "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast("q")
    except (OSError, ValueError):
        return None


def _memory_file(num_bytes: int) -> int | None:
    if not hasattr(os, "memfd_create"):
        return None
    fd = os.memfd_create("slipstream")
    os.ftruncate(fd, num_bytes)
    return fd
