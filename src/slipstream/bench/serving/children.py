"""slipstream in processes of its own: a server on a free loopback port, and a command that prints rows.

Each takes the device for itself while it runs, and gives it back when it ends.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LAST_LINES = 20
END_S = 60.0


def command(*arguments: str) -> list[str]:
    """How slipstream is run from where it is; no module that lies in the user's folder by chance."""
    root = str(Path(__file__).parents[3])
    script = f"import sys; sys.path.append({root!r}); from slipstream.cli.main import main; main()"
    return [sys.executable, "-P", "-c", script, *arguments]


def printed_rows(*arguments: str) -> list[dict[str, Any]]:
    """The JSON rows that a verb prints.

    Raises:
        ValueError: it failed; its own last words.
    """
    done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise ValueError(f"`slipstream {' '.join(arguments)}` failed: {_last_words(done.stderr.splitlines())}")
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def served(arguments: Sequence[str], *, start_s: float) -> Iterator[str]:
    """Run `slipstream serve` on a free port; its URL, once it answers requests.

    Raises:
        ValueError: it ended, or was not ready in time; its own last words.
    """
    process = subprocess.Popen(
        command("serve", "--port", "0", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process, which ends the server
        env={name: value for name, value in os.environ.items() if name != "SLIPSTREAM_API_KEY"},
    )
    log = Log(process)
    try:
        yield log.url_when_ready(start_s)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


class Log:
    """Reads what a server says on stderr, so that it never waits to say it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process, self._url = process, ""
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._changed = threading.Condition()
        self._ready = self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def url_when_ready(self, seconds: float) -> str:
        """Wait for it.

        Raises:
            ValueError: it has ended, or takes longer.
        """
        ends_s = time.monotonic() + seconds
        with self._changed:
            while not self._ready and not self._ended and (left := ends_s - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._ready:
                return self._url
            why = "ended" if self._ended else f"was not ready within {seconds:g} s"
            raise ValueError(f"the server {why}: {_last_words(self._last)}")

    def close(self) -> None:
        """The process has ended."""
        self._thread.join()
        assert self._process.stderr is not None, "it is a pipe"
        self._process.stderr.close()

    def _read(self) -> None:
        assert self._process.stderr is not None, "it is a pipe"
        for line in self._process.stderr:
            event = _event(line)
            with self._changed:
                self._last.append(line)
                self._url = event.get("url", self._url)
                self._ready = self._ready or event.get("event") == "ready"
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def _event(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        return json.loads(line)
    except ValueError:
        return {}


def _last_words(lines: Sequence[str] | deque[str]) -> str:
    """An error that was said, else the last line that is no event."""
    spoken = [line.strip() for line in lines if line.strip() and not line.startswith("{")]
    errors = [line for line in spoken if line.startswith("error: ")]
    return (errors or spoken or ["it said nothing"])[-1].removeprefix("error: ")
