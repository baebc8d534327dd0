"""Start the engine's process: slipstream from where it is, at the other end of a socket pair."""

import socket
import subprocess
import sys
from pathlib import Path

STDERR = 2


def start_child(command: list[str] | None = None) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process, and this side of its socket. What it prints goes to stderr; Ctrl-C does not reach it."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*(command or child_command()), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=STDERR,
            start_new_session=True,
        )
    return process, ours


def child_command() -> list[str]:
    """What it runs; no module that lies in the user's folder by chance."""
    root = str(Path(__file__).parents[3])
    script = f"import sys; sys.path.append({root!r}); from slipstream.serve.process import main; main()"
    return [sys.executable, "-P", "-c", script]


def obituary(process: subprocess.Popen[bytes], wait_s: float) -> str:
    """Why a process that hung up has ended, in one sentence."""
    try:
        code = process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "the engine's process hung up without ending"
    if code < 0:
        return f"the engine's process was killed by signal {-code}"
    return f"the engine's process ended with exit code {code}; its last words are above"
