"""Processes of this machine, told apart from later ones with the same id by when they started."""

import os
import signal
from contextlib import suppress
from pathlib import Path

_STATE, _START = 0, 19  # fields of /proc/PID/stat after the name, which may hold blanks and brackets
_ENDED = ("Z", "X")


def start_ticks(pid: int) -> int | None:
    """When a living process started, in ticks since boot; None if it has ended or the system has no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[_STATE] in _ENDED else int(fields[_START])


def is_gone(pid: int, started: int | None) -> bool:
    """Whether the process has ended, a zombie included. `started` is what start_ticks said of it in its life."""
    if started is not None:
        return start_ticks(pid) != started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def kill(pid: int, started: int | None) -> None:
    """End the process, also a stopped one. Does nothing if it has ended, whoever has its id now."""
    if not is_gone(pid, started):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
