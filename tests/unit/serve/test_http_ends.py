"""How requests and servers end: hang-ups, time-outs, signals, and an engine that dies."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from tests.patience import patience
from tests.served import Server, events_of, model_arguments, refused, serving
from tests.unit.cli.world import World

LONG = {"prompt": "the quick", "max_tokens": 240, "ignore_eos": True, "temperature": 0}


def arguments(world: World, *more: str) -> tuple[str, ...]:
    """One request at a time, so that many of them take a while."""
    return (*model_arguments(world.model, world.draft, "--served-model-name", "tiny", "--max-batch", "1"), *more)


class Stream:
    """An answer that has begun."""

    def __init__(self, server: Server, body: dict[str, Any]) -> None:
        self.client = server.http
        request = self.client.build_request("POST", "/v1/completions", json={**body, "stream": True})
        self.response = self.client.send(request, stream=True)
        assert self.response.status_code == 200
        self.lines = self.response.iter_lines()
        next(self.lines)

    def rest(self) -> list[str]:
        """What still comes, though the connection may be cut."""
        found: list[str] = []
        with contextlib.suppress(httpx.HTTPError):
            found += [line for line in self.lines if line]
        self.close()
        return found

    def close(self) -> None:
        self.response.close()
        self.client.close()


def test_a_client_that_hangs_up_frees_its_request(server: Server) -> None:
    server.wait_until(server.idle)
    before = server.number("slipstream_cycles_total")
    Stream(server, {**LONG, "n": 16}).close()
    server.wait_until(server.idle)
    answered = server.number("slipstream_cycles_total") - before
    assert answered < 16 * 239 / 4 * 0.9  # all answers to their ends would take more
    assert server.number("slipstream_kv_usage_ratio") == 0
    assert any(event.get("status") == 499 for event in server.events)


def test_hanging_up_before_a_whole_answer_frees_it_too(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({**LONG, "n": 16}).encode()
    with socket.create_connection((host, int(port))) as sock:
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        server.wait_until(lambda: server.number("slipstream_requests_running") > 0)
    server.wait_until(server.idle)


def test_sigterm_lets_answers_end_and_refuses_new_ones(http_world: World) -> None:
    with serving(*arguments(http_world, "--drain-seconds", "60")) as server:
        stream = Stream(server, {**LONG, "n": 2})
        server.process.send_signal(signal.SIGTERM)
        server.wait_until(lambda: server.get("/ready").status_code == 503)
        assert server.get("/ready").json()["status"] == "draining"
        assert server.get("/health").status_code == 200
        refused = server.post("/v1/completions", LONG)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert "retry-after" in refused.headers
        assert stream.rest()[-1] == "data: [DONE]"
        assert server.process.wait(patience(30)) == 0


def test_answers_that_outlast_the_drain_are_cut(http_world: World) -> None:
    with serving(*arguments(http_world, "--drain-seconds", "0")) as server:
        stream = Stream(server, {**LONG, "n": 16})
        assert server.end() == 0
        error = json.loads(stream.rest()[-1].removeprefix("data: "))["error"]
        assert error["code"] == "shutting_down"
        assert not running(server.engine_pid)


def test_a_second_signal_stops_at_once(http_world: World) -> None:
    with serving(*arguments(http_world, "--drain-seconds", "600")) as server:
        stream = Stream(server, {**LONG, "n": 16})
        server.process.send_signal(signal.SIGINT)
        server.wait_until(lambda: any(event["event"] == "draining" for event in server.events))
        assert server.end() == 0
        stream.close()
        assert not running(server.engine_pid)


def test_an_engine_that_is_killed_ends_streams_with_an_error_and_the_server_with_its_reason(
    http_world: World,
) -> None:
    with serving(*arguments(http_world)) as server:
        stream = Stream(server, {**LONG, "n": 16})
        os.kill(server.engine_pid, signal.SIGKILL)
        error = json.loads(stream.rest()[-1].removeprefix("data: "))["error"]
        assert error["code"] == "engine_dead"
        assert "signal 9" in error["message"]
        assert server.process.wait(patience(30)) == 1
        server.wait_until(lambda: any(line.startswith("error: ") for line in server.lines))
        assert "error: the engine's process was killed by signal 9\n" in server.lines


def test_a_server_that_is_killed_takes_its_engine_along(http_world: World) -> None:
    with serving(*arguments(http_world)) as server:
        server.process.kill()
        server.process.wait()
        server.wait_until(lambda: not running(server.engine_pid))


def test_a_request_beyond_its_time_is_told_so(http_world: World) -> None:
    with serving(*arguments(http_world, "--request-timeout-s", "0.05")) as server:
        response = server.post("/v1/completions", {**LONG, "n": 16})
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "timeout"
        stream = server.post("/v1/completions", {**LONG, "n": 16, "stream": True})
        last = stream.json() if stream.status_code == 504 else json.loads(events_of(stream)[-1])
        assert last["error"]["code"] == "timeout"
        server.wait_until(server.idle)


def test_the_server_says_how_far_it_is_until_it_is_ready(http_world: World) -> None:
    with serving(*arguments(http_world), ready=False) as server:
        assert server.get("/health").status_code == 200
        first = server.get("/ready")
        assert first.status_code == 503
        assert first.json()["status"] == "loading"
        assert "stage" in first.json()
        early = server.post("/v1/completions", LONG)
        assert early.status_code == 503
        assert early.json()["error"]["code"] == "loading"
        server.wait_until(lambda: server.get("/ready").json() == {"status": "ready"}, 60)


def test_what_cannot_be_served_is_refused_in_a_sentence(http_world: World, server: Server) -> None:
    port = server.url.rsplit(":", 1)[1]
    model = ("--model", http_world.model, "--device", "cpu")
    for more, words in (
        (("--model", "nowhere"), "is not a model"),
        ((*model, "--port", port), f"cannot listen on 127.0.0.1 port {port}"),
        ((*model, "--port", "0", "--draft", http_world.model), "is it an EAGLE-3 draft?"),
        ((*model, "--port", "0", "--max-len", "9999"), "max_len 9999"),
    ):
        assert words in refused(*more)


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


MINUTE = pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(300)])


@pytest.mark.parametrize("seconds", [3, MINUTE])
def test_at_ten_times_the_limit_clients_are_told_to_come_back(http_world: World, seconds: float) -> None:
    with serving(*arguments(http_world, "--max-requests", "4", "--max-batch", "4")) as server:
        statuses, texts, slowest = [], set(), 0.0
        lock, ends = threading.Lock(), time.monotonic() + seconds

        def ask() -> None:
            nonlocal slowest
            with server.http as client:
                while time.monotonic() < ends:
                    began = time.monotonic()
                    response = client.post("/v1/completions", json={**LONG, "max_tokens": 30})
                    with lock:
                        statuses.append(response.status_code)
                        slowest = max(slowest, time.monotonic() - began)
                    if response.status_code == 429:
                        assert response.headers["retry-after"] == "1"
                        assert response.json()["error"]["type"] == "rate_limit_error"
                        time.sleep(min(1.0, max(0.0, ends - time.monotonic())))
                    else:
                        texts.add(response.json()["choices"][0]["text"])

        threads = [threading.Thread(target=ask) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 429}
        assert slowest < patience(20)
        assert len(texts) == 1, "greedy answers are those of a quiet server"
        server.wait_until(server.idle)
        assert server.post("/v1/completions", {**LONG, "max_tokens": 3}).status_code == 200
