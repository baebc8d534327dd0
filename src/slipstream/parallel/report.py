"""Last words that cannot hang: what a failing rank writes must not keep it from ending."""

import os
import select
import threading
from contextlib import suppress
from pathlib import Path

from slipstream.parallel.ring import DecisionRing

_STDERR = 2


def print_line(line: str) -> None:
    """Write to stderr below Python, whose lock a stuck thread may hold; not into a pipe that nobody empties."""
    poll = select.poll()
    poll.register(_STDERR, select.POLLOUT)
    with suppress(OSError):
        if poll.poll(0):
            os.write(_STDERR, f"{line}\n".encode())


def write_ring(ring: DecisionRing, path: Path, *, rank: int, reason: str, within_s: float) -> Path | None:
    """Write the ring on a thread of its own, because a folder of a dead server hangs; None if it was not written."""
    paths: list[Path | None] = []

    def write() -> None:
        paths.append(ring.write(path, rank=rank, reason=reason))

    writer = threading.Thread(target=write, name="decisions", daemon=True)
    try:
        writer.start()
    except RuntimeError:  # the interpreter is shutting down
        return ring.write(path, rank=rank, reason=reason)
    writer.join(within_s)
    return paths[0] if paths else None
