"""Two replicas on the CPUs of a local Ray cluster, deployed as deploy/ray-serve.yaml says."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.patience import patience
from tests.served import ROOT, Server, chunks_of, model_arguments, serving
from tests.unit.cli.world import World, make_world

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SHIPPED = ROOT / "deploy" / "ray-serve.yaml"
START_S, RESTART_S = 180.0, 120.0
KEY, REPLICA = "secret", "x-slipstream-replica"
FOX = "the quick brown fox jumps over the lazy dog and sleeps"
CODE = "def main() -> None: return 1234 + 5678 # print it"
LONG = {"prompt": FOX, "max_tokens": 180, "ignore_eos": True, "temperature": 0}
MANY = {**LONG, "n": 16, "stream": True}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": FOX, "max_tokens": 24, "temperature": 0}),
    ("/v1/completions", {"prompt": CODE, "max_tokens": 24, "seed": 7, "n": 2}),
    ("/v1/completions", {"prompt": [7] * 20, "max_tokens": 8, "temperature": 0, "logprobs": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": FOX}], "max_tokens": 16, "temperature": 0}),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("ray-serve"))


@pytest.fixture(scope="module")
def expected(world: World) -> list[Any]:
    """What one server by itself answers."""
    with serving(*model_arguments(world.model, world.draft, "--steps", "3")) as server:
        return [server.post(path, body).json()["choices"] for path, body in REQUESTS]


@pytest.fixture(scope="module")
def arguments(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of the application: the file's, with this machine's values."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n")
    here = {"model": world.model, "draft": world.draft, "api_key_file": str(keys), "device": "cpu", "tp": 1}
    small = {"max_batch": 4, "max_requests": 20, "target_requests": 16, "min_replicas": 2, "max_replicas": 2}
    shipped = yaml.safe_load(SHIPPED.read_text())["applications"][0]["args"]
    return {**shipped, **here, **small, "served_model_name": ["tiny"], "kv_gib": 0.05}


@pytest.fixture(scope="module")
def cluster(arguments: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file, port = tmp_path_factory.mktemp("cluster") / "ray-serve.yaml", free_port()
    config = yaml.safe_load(SHIPPED.read_text())
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    config["applications"][0]["args"] = arguments
    file.write_text(yaml.safe_dump(config))
    with running(file) as server:
        server.url, server.key = f"http://127.0.0.1:{port}", KEY
        server.wait_until(lambda: replicas(server) == 2 or server.process.poll() is not None, START_S)
        assert server.process.poll() is None, "".join(server.lines)
        yield server


@contextlib.contextmanager
def running(file: Path) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("ray_cluster.py")), str(file)],
        env={**os.environ, **VARIABLES},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    server = Server(process)
    reader = threading.Thread(target=lambda: server.lines.extend(process.stdout or ()), daemon=True)
    reader.start()
    try:
        yield server
    finally:
        if process.stdin is not None:
            process.stdin.close()  # Ray Serve shuts down, and Ray with it
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience(60))
        process.kill()
        process.wait()
        reader.join()
        if process.stdout is not None:
            process.stdout.close()


VARIABLES = {
    "PYTHONPATH": str(ROOT / "src"),
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ADDRESS": "",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def replicas(server: Server) -> int:
    """How many say that they are ready; 0 while nobody listens."""
    with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
        return server.get("/ready").json()["replicas"]
    return 0


def engine_of(server: Server, replica: str) -> int:
    """The pid of its engine, which it logged when it was ready."""
    events = [json.loads(line[line.index("{") :]) for line in list(server.lines) if f'"replica": "{replica}"' in line]
    return events[0]["engine_pid"]


def total(server: Server, name: str) -> float:
    """A sample's sum over the replicas."""
    families = text_string_to_metric_families(server.get("/metrics").text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def idle(server: Server) -> bool:
    return not any(total(server, f"slipstream_requests_{state}") for state in ("running", "waiting"))


def test_answers_are_those_of_one_server(cluster: Server, expected: list[Any]) -> None:
    for (path, body), choices in zip(REQUESTS, expected, strict=True):
        response = cluster.post(path, body)
        assert response.status_code == 200, response.text
        assert response.json()["choices"] == choices
        assert response.json()["model"] == "tiny"


def test_streams_come_event_by_event(cluster: Server, expected: list[Any]) -> None:
    path, body = REQUESTS[0]
    whole, *_ = expected[0]
    with cluster.http as client, client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        pieces = list(response.iter_raw())
    assert len(pieces) > 1
    chunks = chunks_of(httpx.Response(200, content=b"".join(pieces)))
    assert "".join(each["choices"][0]["text"] for each in chunks) == whole["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


def test_prompts_that_begin_alike_go_to_one_replica_and_others_to_the_other(cluster: Server) -> None:
    families = {"one": "Once upon a time there was a fox. ", "two": "SELECT name FROM planets WHERE mass > 5; "}
    homes = {
        name: {
            cluster.post("/v1/completions", {"prompt": f"{begin}{turn}", "max_tokens": 2}).headers[REPLICA]
            for turn in ("", "and", "and then", "and then some")
        }
        for name, begin in families.items()
    }
    assert [len(found) for found in homes.values()] == [1, 1]
    assert homes["one"] != homes["two"]
    again = cluster.post("/v1/completions", {"prompt": families["one"] * 3, "max_tokens": 2})
    assert {again.headers[REPLICA]} == homes["one"]
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_statuses_and_errors_are_those_of_one_server(cluster: Server) -> None:
    assert cluster.post("/v1/completions", {"prompt": "x", "stepz": 1}).status_code == 400
    missing = cluster.post("/v1/completions", {"prompt": "x", "model": "other"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert cluster.post("/v1/completions", {"prompt": "x" * (9 << 20)}).status_code == 413
    assert cluster.get("/nowhere").status_code == 404
    assert cluster.post("/health", {}).status_code == 405
    assert cluster.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert cluster.post("/tokenize", {"prompt": "fox"}).json()["count"] > 0
    assert cluster.get("/server_info").json()["models"] == ["tiny"]
    for path in ("/v1/models", "/metrics", "/docs", "/nowhere"):
        assert httpx.get(cluster.url + path).status_code == 401
    assert httpx.get(f"{cluster.url}/health").json() == {"status": "ok"}


def test_a_full_replica_sends_clients_away(cluster: Server) -> None:
    cluster.wait_until(lambda: idle(cluster))
    with cluster.http as client, client.stream("POST", "/v1/completions", json=MANY) as one:
        pieces = one.iter_raw()
        next(pieces)
        second = cluster.post("/v1/completions", {**LONG, "n": 16})
    assert (second.status_code, second.headers["retry-after"]) == (429, "1")
    cluster.wait_until(lambda: idle(cluster))


def test_a_client_that_hangs_up_frees_its_request(cluster: Server) -> None:
    cluster.wait_until(lambda: idle(cluster))
    before = total(cluster, "slipstream_cycles_total")
    for stream in (True, False):
        with cluster.http as client:
            if stream:
                with client.stream("POST", "/v1/completions", json=MANY) as response:
                    next(response.iter_raw())
            else:
                with contextlib.suppress(httpx.ReadTimeout):
                    client.post("/v1/completions", json={**LONG, "n": 16}, timeout=0.3)
        cluster.wait_until(lambda: idle(cluster))
    assert total(cluster, "slipstream_cycles_total") - before < 2 * 16 * 179 / 4 * 0.9  # not all to their ends
    assert total(cluster, "slipstream_kv_usage_ratio") == 0


def test_a_replica_whose_engine_dies_is_replaced_and_the_other_serves_meanwhile(
    cluster: Server, expected: list[Any]
) -> None:
    lost = cluster.post(*REQUESTS[0]).headers[REPLICA]
    with cluster.http as client, client.stream("POST", "/v1/completions", json=MANY) as one:
        assert one.headers[REPLICA] == lost
        lines = one.iter_lines()
        next(lines)
        os.kill(engine_of(cluster, lost), signal.SIGKILL)
        last = [line for line in lines if line][-1]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "engine_dead"
    assert "signal 9" in error["message"]
    for (path, body), choices in zip(REQUESTS, expected, strict=True):
        response = cluster.post(path, body)  # some of them are asked of the dying one first
        assert response.json()["choices"] == choices
        assert response.headers[REPLICA] != lost
    assert cluster.get("/ready").json() == {"status": "ready", "replicas": 1}
    cluster.wait_until(lambda: replicas(cluster) == 2, RESTART_S)


def test_a_rollout_loses_no_answer(cluster: Server, arguments: dict[str, Any]) -> None:
    """The last test: it replaces both replicas."""
    statuses: list[int] = []
    names: set[str] = set()
    done = threading.Event()

    def ask(prompt: str) -> None:
        while not done.is_set():
            response = cluster.post("/v1/completions", {**LONG, "prompt": prompt, "n": 2})
            statuses.append(response.status_code)
            names.add(response.headers.get(REPLICA, "none"))

    clients = [threading.Thread(target=ask, args=(prompt,)) for prompt in (FOX, CODE)]
    for client in clients:
        client.start()
    assert cluster.process.stdin is not None
    cluster.process.stdin.write(json.dumps(arguments) + "\n")
    cluster.process.stdin.flush()
    try:
        cluster.wait_until(lambda: "deployed anew\n" in cluster.lines, 2 * RESTART_S)
        cluster.wait_until(lambda: replicas(cluster) == 2, RESTART_S)
    finally:
        done.set()
        for client in clients:
            client.join()
    assert set(statuses) == {200}
    assert len(names) > 2  # old ones and new ones
