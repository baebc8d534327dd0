"""Groups over gloo processes: every operation, every dtype, the same bits everywhere, one order of sums."""

import os
import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.parallel.gloo_ranks import DTYPES, share

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 120


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the ranks saved."""
    folder, size = tmp_path_factory.mktemp("ranks"), request.param
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    place: dict[str, Any] = {"env": environment, "cwd": ROOT}
    program = [sys.executable, "-m", "tests.unit.parallel.gloo_ranks"]
    processes = [
        subprocess.Popen([*program, str(rank), str(size), str(folder / "store"), str(folder / f"{rank}.pt")], **place)
        for rank in range(size)
    ]
    try:
        assert [process.wait(SECONDS) for process in processes] == [0] * size
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(size)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def shares(found: list[dict[str, Any]], dtype: torch.dtype) -> list[torch.Tensor]:
    return [share(rank, dtype) for rank in range(len(found))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sum_is_added_in_rank_order_and_has_the_same_bits_on_all_ranks(
    found: list[dict[str, Any]], dtype: torch.dtype
):
    expected = reduce(torch.add, shares(found, dtype))
    assert all(same_bits(each[str(dtype)]["all_reduce"], expected) for each in found)
    assert all(same_bits(each[str(dtype)]["strided"], expected.t()) for each in found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gather_holds_every_share_in_rank_order(found: list[dict[str, Any]], dtype: torch.dtype):
    assert all(same_bits(each[str(dtype)]["all_gather"], torch.stack(shares(found, dtype))) for each in found)
    assert all(each[str(dtype)]["empty"].shape == (len(found), 0, 7) for each in found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_broadcast_brings_rank_zeros_share(found: list[dict[str, Any]], dtype: torch.dtype):
    assert all(same_bits(each[str(dtype)]["broadcast"], share(0, dtype)) for each in found)


def test_sums_are_the_same_in_inference_mode(found: list[dict[str, Any]]):
    assert all(same_bits(each["inference"], each["torch.float32"]["all_reduce"]) for each in found)


def test_the_backends_own_order_gives_all_ranks_one_sum(found: list[dict[str, Any]]):
    assert all(same_bits(each["backend"], found[0]["backend"]) for each in found)
    torch.testing.assert_close(found[0]["backend"], found[0]["torch.float32"]["all_reduce"])


def test_a_smaller_group_counts_its_own_ranks(found: list[dict[str, Any]]):
    size = len(found)
    assert [each["pair"] for each in found[size - 2 :]] == [(place, 2, torch.tensor([size - 2])) for place in (0, 1)]
