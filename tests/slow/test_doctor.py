"""The shipped draft beside the default model: every deliberate mis-wiring is named within a minute."""

import json
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slipstream.weights.shipped import shipped_draft
from slipstream.weights.store import resolve_model
from tests.unit.cli.world import run
from tests.unit.doctor.patients import copied, with_ids

pytestmark = pytest.mark.slow
MODEL = "smollm2-135m"
MAX_SECONDS = 60.0


@pytest.fixture(scope="module")
def draft() -> Path:
    try:
        resolve_model(MODEL)
    except ValueError as error:
        pytest.skip(str(error))
    found = shipped_draft(MODEL)
    assert found is not None
    return found


def examine(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    started = time.perf_counter()
    outcome = run(capsys, "doctor", "--model", MODEL, *arguments, "--json")
    seconds = time.perf_counter() - started
    found = json.loads(outcome.out)
    wiring = found["wiring"]
    print(f"{seconds:.0f} s: {found['verdict']}: {wiring['says']}")
    for row in wiring["hypotheses"]:
        print(f"    {row['round']} {row['name']:32} {row['cross_entropy']} {row['accept_length']}")
    assert outcome.code == found["exit_code"]
    assert seconds < MAX_SECONDS
    return found


def test_the_right_wiring_passes(capsys: pytest.CaptureFixture[str], draft: Path) -> None:
    found = examine(capsys, "--draft", str(draft))
    assert (found["verdict"], found["wiring"]["outcome"]) == ("healthy", "right")


@pytest.mark.parametrize(
    ("config", "cause", "flag"),
    [
        (with_ids(3, 16, 28), "layers +1", "--draft-layers 2,15,27"),
        (with_ids(1, 14, 26), "layers -1", "--draft-layers 2,15,27"),
        (with_ids(27, 15, 2), "layers reversed", "--draft-layers 2,15,27"),
        ({"norm_output": True}, "post-norm feedback", "--no-draft-norm-output"),
    ],
    ids=["+1", "-1", "reversed", "post-norm"],
)
def test_a_config_that_wires_wrongly_is_named(
    capsys: pytest.CaptureFixture[str], draft: Path, tmp_path: Path, config: dict, cause: str, flag: str
) -> None:
    found = examine(capsys, "--draft", str(copied(draft, tmp_path, config=config)))
    assert found["exit_code"] == 2
    assert [(each["name"], each["slipstream"]) for each in found["wiring"]["causes"]] == [(cause, flag)]


def test_the_flag_that_is_named_makes_the_wiring_right(
    capsys: pytest.CaptureFixture[str], draft: Path, tmp_path: Path
) -> None:
    folder = copied(draft, tmp_path, config=with_ids(27, 15, 2))
    found = examine(capsys, "--draft", str(folder), "--draft-layers", "2,15,27")
    assert (found["verdict"], found["wiring"]["outcome"]) == ("healthy", "right")


@pytest.mark.parametrize("mask", [True, False], ids=["t2d is there", "t2d is not there"])
def test_a_zeroed_map_is_named(capsys: pytest.CaptureFixture[str], draft: Path, tmp_path: Path, *, mask: bool) -> None:
    d2t = load_file(draft / "model.safetensors")["d2t"]
    tensors = {"d2t": torch.zeros_like(d2t), **({} if mask else {"t2d": None})}
    found = examine(capsys, "--draft", str(copied(draft, tmp_path, tensors=tensors)))
    assert found["exit_code"] == 2
    assert any("d2t is all zeros" in each["says"] for each in found["compatibility"]["findings"])
    assert "zero" in found["says"]
    assert [each["slipstream"] for each in found["wiring"]["causes"]] == ["--draft-d2t mask"] * mask


def test_unshifted_tokens_are_named(capsys: pytest.CaptureFixture[str], draft: Path) -> None:
    found = examine(capsys, "--draft", str(draft), "--plant", "unshifted")
    assert [each["name"] for each in found["wiring"]["causes"]] == ["unshifted tokens"]


@pytest.mark.parametrize("whole", [True, False], ids=["all of it", "its states alone"])
def test_a_draft_of_another_target_is_named(
    capsys: pytest.CaptureFixture[str], draft: Path, tmp_path: Path, *, whole: bool
) -> None:
    """Another target of the same shape: its hidden dimensions lie in another order, and so do its token ids."""
    tensors = load_file(draft / "model.safetensors")
    order = torch.randperm(576, generator=torch.Generator().manual_seed(0))
    changed = {"fc.weight": torch.cat([part[:, order] for part in tensors["fc.weight"].split(576, dim=1)], dim=1)}
    if whole:
        rows = torch.randperm(len(tensors["lm_head.weight"]), generator=torch.Generator().manual_seed(1))
        changed["lm_head.weight"] = tensors["lm_head.weight"][rows].contiguous()
    found = examine(capsys, "--draft", str(copied(draft, tmp_path, tensors=changed)))
    assert (found["exit_code"], found["wiring"]["outcome"]) == (2, "another target's draft")


def test_speculation_with_the_shipped_draft_changes_no_token(capsys: pytest.CaptureFixture[str], draft: Path) -> None:
    outcome = run(capsys, "doctor", "lossless", "--model", MODEL, "--max-tokens", "24", "--json")
    found = json.loads(outcome.out)
    print(found["says"])
    assert (outcome.code, found["verdict"]) == (0, "healthy")
    assert len(found["runs"]) == 15
