"""Two pods of deploy/kubernetes/leaderworkerset.yaml as two torchruns on this host, one CPU rank each."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from tests.patience import patience
from tests.served import ROOT, Server, model_arguments, serving
from tests.unit.cli.world import World, make_world

pytestmark = pytest.mark.slow

START_S = 120.0
TEXT = {"prompt": "the quick brown fox", "max_tokens": 12, "temperature": 0}
LONG = {"prompt": "the quick", "max_tokens": 240, "ignore_eos": True, "n": 4, "stream": True}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("nodes"))


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """The leader's container; the worker runs the same command."""
    first = next(yaml.safe_load_all((ROOT / "deploy/kubernetes/leaderworkerset.yaml").read_text()))
    (found,) = first["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"]
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


@contextlib.contextmanager
def nodes(manifest: dict[str, Any], world: World) -> Iterator[tuple[Server, "subprocess.Popen[str]"]]:
    """Rank 0's server, and the other node's torchrun."""
    port = free_port()
    here = {"--nproc-per-node": "1", "--master-port": str(free_port()), "--host": "127.0.0.1", "--port": str(port)}
    here |= {"--model": world.model, "--draft": world.draft}
    processes = []
    for index in range(2):
        kubernetes = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": str(index), "LWS_LEADER_ADDRESS": "127.0.0.1"}
        command = [filled(each, kubernetes, here) for each in manifest["command"]]
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *command[1:], "--device=cpu", "--steps=3"],
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    server = Server(processes[0], url=f"http://127.0.0.1:{port}")
    readers = [threading.Thread(target=lambda each=each: server.lines.extend(each.stderr)) for each in processes]
    for reader in readers:
        reader.start()
    try:
        server.wait_until(lambda: ready(server) or server.process.poll() is not None, START_S)
        assert server.process.poll() is None, "".join(server.lines)
        yield server, processes[1]
    finally:
        for process in processes:
            process.terminate()  # torchrun ends its ranks
            process.wait(patience(60))
        for reader in readers:
            reader.join()
        for process in processes:
            process.stderr.close()


def filled(argument: str, kubernetes: dict[str, str], here: dict[str, str]) -> str:
    """An argument as a pod has it, with this host's values."""
    name, equals, value = argument.partition("=")
    value = re.sub(r"\$\((\w+)\)", lambda match: kubernetes[match[1]], here.get(name, value))
    return f"{name}{equals}{value}"


def ready(server: Server) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return server.get("/ready").status_code == 200
    return False


def before_stop(manifest: dict[str, Any], pid: int) -> "subprocess.Popen[bytes]":
    """The pod's preStop hook, for a torchrun that is not process 1."""
    *shell, script = manifest["lifecycle"]["preStop"]["exec"]["command"]
    assert script.count("/proc/1/") == script.count("kill -0 1;") == 1
    script = script.replace("/proc/1/", f"/proc/{pid}/").replace("kill -0 1;", f"kill -0 {pid};")
    return subprocess.Popen([*shell, script], stderr=subprocess.DEVNULL)


def test_two_nodes_answer_as_one_and_leave_when_answers_have_ended(manifest: dict[str, Any], world: World) -> None:
    with serving(*model_arguments(world.model, world.draft, "--steps", "3")) as alone:
        expected = alone.post("/v1/completions", TEXT).json()["choices"]
    with nodes(manifest, world) as (server, other):
        assert server.post("/v1/completions", TEXT).json()["choices"] == expected
        assert len(server.get("/server_info").json()["ranks"]) == 2
        with server.http as client, client.stream("POST", "/v1/completions", json=LONG) as response:
            lines = response.iter_lines()
            next(lines)
            hooks = [before_stop(manifest, each.pid) for each in (other, server.process)]
            server.wait_until(lambda: server.get("/ready").status_code == 503)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert [each.wait(patience(60)) for each in (server.process, other)] == [0, 0]
        assert [hook.wait(patience(10)) for hook in hooks] == [0, 0]
