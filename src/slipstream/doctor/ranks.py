"""Fresh processes, one a rank, that are done, dead or given up after a time."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO

import slipstream

SOURCES = Path(slipstream.__file__).resolve().parents[1]
POLL_S = 0.05


class Ending(Enum):
    """How a run ended."""

    DONE = "done"
    FAILED = "failed"
    HUNG = "hung"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run left."""

    ending: Ending
    output: str  # rank 0's stdout
    error: str  # the last line of stderr of the first rank that failed


def run_ranks(
    command: Sequence[str], *, size: int, timeout_s: float, environment: Mapping[str, str | None] | None = None
) -> Outcome:
    """Run a command of Python's as ranks of a world, and end them all before returning.

    command: what follows `python`, for example ("-m", "package.module").
    environment: set for the ranks; None takes a variable away.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2 * size)]
        outputs, errors = files[:size], files[size:]
        shared = _environment(size, environment or {})
        processes: list[subprocess.Popen[str]] = []
        try:
            for rank, (output, error) in enumerate(zip(outputs, errors)):
                own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                process = subprocess.Popen([sys.executable, *command], env=own, stdout=output, stderr=error, text=True)
                processes.append(process)
            ending = _wait(processes, timeout_s)
            failed = next((rank for rank, process in enumerate(processes) if process.returncode), 0)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return Outcome(ending=ending, output=_text(outputs[0]), error=_last_line(_text(errors[failed])))


def _environment(size: int, changes: Mapping[str, str | None]) -> dict[str, str]:
    found = {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")])),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(size),
        **changes,
    }
    return {name: value for name, value in found.items() if value is not None}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(processes: Sequence["subprocess.Popen[str]"], timeout_s: float) -> Ending:
    """Wait for all, or for the first that fails: the others may wait for it."""
    until = time.monotonic() + timeout_s
    while True:
        codes = [process.poll() for process in processes]
        if any(codes):
            return Ending.FAILED
        if None not in codes:
            return Ending.DONE
        if time.monotonic() > until:
            return Ending.HUNG
        time.sleep(POLL_S)


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
