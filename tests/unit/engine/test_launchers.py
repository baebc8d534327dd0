"""However the ranks are started, they say the same tokens; and a rank that dies under Ray takes everything with it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.parallel.process import is_gone, start_ticks
from tests.unit.cli.world import World, make_world
from tests.unit.engine.launched import PROMPTS

SCRIPT = str(Path(__file__).with_name("launched.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
ENDS_S = 20  # the watchdog's 10 s are for silence; a death is seen at once


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("launchers"))


@pytest.fixture(scope="module")
def spawned(world: World) -> dict[str, Any]:
    """What ranks say that rank 0 started itself."""
    return json.loads(output([sys.executable, SCRIPT, "spawn", world.model, world.draft]))


@pytest.fixture
def under_ray(world: World) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, SCRIPT, "ray", world.model, world.draft, "--on"]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def output(command: list[str]) -> str:
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torchrun_says_what_spawn_says_and_only_rank_0_prints(world: World, spawned: dict[str, Any]):
    assert len(set(map(str, spawned.values()))) == 2, "greedy and sampled differ; the draft's placement changes nothing"
    lines = output([*TORCHRUN, SCRIPT, "spawn", world.model, world.draft]).splitlines()
    assert [json.loads(line) for line in lines] == [spawned]


def test_the_command_line_under_torchrun_prints_each_answer_once(world: World, spawned: dict[str, Any]):
    models = ["--model", world.model, "--draft", world.draft, "--draft-tp", "1", "--device", "cpu"]
    prompt = ["--raw", "--json", "--prompt", PROMPTS[0], "--max-tokens", "20", "--ignore-eos"]
    lines = output([*TORCHRUN, "-m", "slipstream", "generate", *models, *prompt]).splitlines()
    assert [json.loads(line)["token_ids"] for line in lines] == [spawned["1 greedy"][0]]


def test_ray_says_what_spawn_says_and_a_killed_actor_ends_it_all(
    under_ray: subprocess.Popen[str], spawned: dict[str, Any]
):
    assert under_ray.stdout is not None
    assert json.loads(under_ray.stdout.readline() or under_ray.communicate()[1]) == spawned
    family = descendants(under_ray.pid)
    follower = next(pid for pid in family if title(pid).startswith("ray::RayRank.follow"))
    os.kill(follower, signal.SIGKILL)
    _, stderr = under_ray.communicate(timeout=ENDS_S)
    assert under_ray.returncode == 1
    assert f"GroupError: rank 1 (pid {follower} on host" in stderr
    assert "the group ends. Restart it" in stderr
    deadline = time.monotonic() + 10
    while left := [title(pid) for pid, started in family.items() if not is_gone(pid, started)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def descendants(pid: int) -> dict[int, int | None]:
    """Every process that stems from one, and when it started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return {each: start_ticks(each) for each in family - {pid}}


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return "ended"
