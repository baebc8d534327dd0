"""The host's share of a cycle; run it on a machine that does nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MOST_MS = 0.5


def host_ms(*, steps: int, topk: int = 1, num_prompt: int = 100, num_waiting: int = 0) -> float:
    """A middling cycle of 64 requests."""
    numbers = [str(each) for each in (steps, topk, num_prompt, num_waiting)]
    found = subprocess.run(
        [sys.executable, "-m", "tests.slow.host_cost", *numbers],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    times = json.loads(found.stdout)
    print(
        f"host ms a cycle: median {median(times):.3f}, least {min(times):.3f}, of {len(times)}: {numbers}", flush=True
    )
    return median(times)


@pytest.mark.parametrize("num_waiting", [0, 200])
@pytest.mark.parametrize(("steps", "topk"), [(0, 1), (4, 1), (4, 4)])
def test_a_cycle_of_64_requests_costs_the_host_less_than_half_a_millisecond(
    steps: int, topk: int, num_waiting: int
) -> None:
    assert host_ms(steps=steps, topk=topk, num_waiting=num_waiting) < MOST_MS


def test_what_a_cycle_costs_does_not_grow_with_the_text() -> None:
    short, long = (host_ms(steps=4, num_prompt=length) for length in (16, 3000))
    assert long < 1.5 * short
