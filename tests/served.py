"""A server in processes of its own, as a user starts it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.patience import patience

START_S = 60.0
ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "slipstream", "serve")


@dataclass(slots=True)
class Server:
    """What a test sees of it."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)
    url: str = ""
    engine_pid: int = 0
    key: str | None = None

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it logged, but for what is no JSON."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    @property
    def http(self) -> httpx.Client:
        """A client of its own; close it."""
        headers = {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=patience(60))

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        """One request with a connection of its own."""
        with self.http as client:
            return client.post(path, json=body, **more)

    def get(self, path: str, **more: Any) -> httpx.Response:
        with self.http as client:
            return client.get(path, **more)

    def number(self, name: str) -> float:
        """A sample of /metrics, by its name and labels as they stand there."""
        lines = self.get("/metrics").text.splitlines()
        return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.rsplit(" ", 1)[0] == name)

    def wait_until(self, what: Any, seconds: float = 10.0) -> None:
        """Look again until it is so."""
        ends = time.monotonic() + patience(seconds)
        while not what():
            assert time.monotonic() < ends, f"not so within {seconds} s"
            time.sleep(0.02)

    def idle(self) -> bool:
        """Whether nothing runs or waits, at either side of the socket."""
        names = ("slipstream_requests_running", "slipstream_requests_waiting", "slipstream_http_requests_open")
        return all(self.number(name) == 0 for name in names)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal it and wait; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(patience(30))


@contextmanager
def serving(
    *arguments: str, key: str | None = None, ready: bool = True, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """Start `slipstream serve` on a free port, and wait until it is ready."""
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", *arguments],
        env={**_variables(), **(environment or {})},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    server = Server(process, key=key)
    reader = threading.Thread(target=_read, args=(server,), daemon=True)
    reader.start()
    try:
        server.wait_until(lambda: server.url or process.poll() is not None, START_S)
        assert server.url, "".join(server.lines)
        if ready:
            server.wait_until(lambda: process.poll() is not None or server.get("/ready").status_code == 200, START_S)
            assert process.poll() is None, "".join(server.lines)
        yield server
    finally:
        process.kill()
        process.wait()
        reader.join()
        if process.stderr is not None:
            process.stderr.close()


def refused(*arguments: str) -> str:
    """What a server says that cannot start: one line, with the exit code of bad input."""
    done = subprocess.run(
        [*COMMAND, *arguments], env=_variables(), capture_output=True, text=True, timeout=patience(60), check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return line


def _variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def _read(server: Server) -> None:
    assert server.process.stderr is not None, "it is a pipe"
    for line in server.process.stderr:
        server.lines.append(line)
        if line.startswith("{") and '"listening"' in line:
            event = json.loads(line)
            server.url, server.engine_pid = event["url"], event["engine_pid"]


def events_of(response: httpx.Response) -> list[str]:
    """The payloads of a stream's events."""
    return [part.removeprefix("data: ") for part in response.text.split("\n\n") if part]


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The same as objects, without the last: [DONE]."""
    *events, done = events_of(response)
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def model_arguments(model: str, draft: str | None, *more: str) -> Sequence[str]:
    """What every server of a test is started with."""
    return ["--model", model, *(["--draft", draft] if draft else ["--no-draft"]), "--device", "cpu", *more]
