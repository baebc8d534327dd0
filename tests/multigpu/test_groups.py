"""Groups over NCCL and shared memory: in CUDA graphs, by the thousand, at every size, the right sums on all ranks."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.doctor.ranks import Ending, run_ranks

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240
PATHS = ("nccl", "one-shot", "two-shot", "push", "measured")
NUM_GPUS = torch.cuda.device_count()
WORLDS = [size for size in (2, 3, 4, 8) if size <= NUM_GPUS] or [2]

pytestmark = [
    pytest.mark.multigpu,
    pytest.mark.skipif(NUM_GPUS < 2, reason="needs two CUDA devices"),
]


@pytest.fixture(scope="module", params=WORLDS, ids=lambda size: f"{size} GPUs")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    folder, size = tmp_path_factory.mktemp("ranks"), request.param
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    script = "import sys; sys.path[:0] = sys.argv.pop().split(':'); from tests.multigpu.group_ranks import main;"
    command = ("-c", f"{script} from pathlib import Path; main(Path(sys.argv[1]))", str(folder), search)
    outcome = run_ranks(command, size=size, timeout_s=SECONDS)
    assert outcome.ending is Ending.DONE, outcome.error
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.parametrize("path", PATHS)
def test_sums_are_right_at_every_size_and_dtype(found: list[dict[str, Any]], path: str):
    assert [each[f"eager {path}"] for each in found] == [0] * len(found)


@pytest.mark.parametrize("path", PATHS)
def test_two_thousand_all_reduces_in_graphs_are_right_whoever_is_late(found: list[dict[str, Any]], path: str):
    assert [each[f"many_in_graphs {path}"] for each in found] == [0] * len(found)


@pytest.mark.parametrize("path", PATHS)
def test_all_reduces_back_to_back_do_not_overtake_each_other(found: list[dict[str, Any]], path: str):
    assert [each[f"back_to_back {path}"] for each in found] == [0] * len(found)


@pytest.mark.parametrize("path", PATHS)
def test_sums_are_right_in_inference_mode(found: list[dict[str, Any]], path: str):
    assert [each[f"in_inference_mode {path}"] for each in found] == [0] * len(found)


def test_shared_memory_adds_in_rank_order_at_every_size(found: list[dict[str, Any]]):
    assert [each["order"] for each in found] == [0] * len(found)


def test_a_sum_in_one_kernel_with_its_residual_has_the_same_bits(found: list[dict[str, Any]]):
    assert [each["fused"] for each in found] == [0] * len(found)


def test_the_best_of_all_ranks_and_rank_0s_words_arrive_whoever_is_late(found: list[dict[str, Any]]):
    assert [each["words"] for each in found] == [0] * len(found)


def test_gathers_and_broadcasts_replay_with_new_values(found: list[dict[str, Any]]):
    assert [each["gather and broadcast"] for each in found] == [0] * len(found)


def test_dtypes_that_shared_memory_lacks_are_summed_too(found: list[dict[str, Any]]):
    assert [each["other dtypes"] for each in found] == [0] * len(found)


def test_all_ranks_choose_alike_and_take_the_fastest_that_may_be_mixed(found: list[dict[str, Any]]):
    reports = [each["report"] for each in found]
    assert all(report == reports[0] for report in reports)
    usable = {"one-shot", "two-shot", "push"} | ({"nccl"} if len(found) == 2 else set())
    for row in reports[0]["rows"]:
        assert row["us"][row["chosen"]] == min(row["us"][path] for path in usable)
    print(json.dumps(reports[0]))


def test_a_delay_adds_its_microseconds(found: list[dict[str, Any]]):
    assert all(45 < each["delay us"] < 60 for each in found)
