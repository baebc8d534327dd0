"""Ranks whose main threads hang in NCCL graphs: a killed or stopped one ends the group, and so does Ctrl-C."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.gpu.nccl_rank import LIMITS
from tests.unit.parallel.ranks import await_text

pytestmark = [pytest.mark.multigpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")]

SIZE = 2
FEW_S = 10.0


def start(folder: Path) -> "list[subprocess.Popen[bytes]]":
    processes = []
    for rank in range(SIZE):
        with (folder / f"stderr-{rank}").open("wb") as stderr:
            command = [sys.executable, "-m", "tests.gpu.nccl_rank", str(folder), str(rank), str(SIZE)]
            processes.append(subprocess.Popen(command, stderr=stderr))
    for rank in range(SIZE):
        await_text(folder / f"ready-{rank}", 120)
    return processes


@pytest.mark.parametrize(("number", "what"), [(signal.SIGKILL, "has ended"), (signal.SIGSTOP, "stopped answering")])
@pytest.mark.parametrize("victim", range(SIZE))
def test_a_rank_lost_in_nccl_ends_the_group(tmp_path: Path, victim: int, number: int, what: str) -> None:
    processes = start(tmp_path)
    try:
        started = time.monotonic()
        processes[victim].send_signal(number)
        assert processes[1 - victim].wait(timeout=LIMITS.limit_s + FEW_S) == 1
        assert processes[victim].wait(timeout=FEW_S) == -signal.SIGKILL
        print(f"{time.monotonic() - started:.1f} s")
        stderr = (tmp_path / f"stderr-{1 - victim}").read_text()
        print(stderr)
        pattern = rf"rank {victim} \(pid \d+ on host \S+\) {what}.* at cycle \d+, stage \w+"
        assert re.search(pattern, stderr), stderr
        lost, other = map(int, re.findall(r"at cycle (\d+)", stderr))
        assert abs(lost - other) <= 1  # collectives keep them in step
        assert (tmp_path / "rings" / f"rank{1 - victim}.jsonl").exists()
    finally:
        for process in processes:
            process.kill()


def test_ctrl_c_ends_a_group_that_hangs_in_nccl(tmp_path: Path) -> None:
    processes = start(tmp_path)
    try:
        processes[1].send_signal(signal.SIGSTOP)  # rank 0 waits for it in a collective
        time.sleep(0.2)
        processes[0].send_signal(signal.SIGINT)
        assert processes[0].wait(timeout=LIMITS.limit_s + FEW_S) == 130
        assert processes[1].wait(timeout=FEW_S) == -signal.SIGKILL
    finally:
        for process in processes:
            process.kill()
