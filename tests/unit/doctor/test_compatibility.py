"""What the files alone show: each thing that does not fit is named with a remedy."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slipstream.config.draft import AS_DECLARED, CaptureConvention, DraftWiring, MapReading
from slipstream.config.model import RopeConfig
from slipstream.doctor.checkpoint import open_draft
from slipstream.doctor.compatibility import compatibility
from slipstream.doctor.finding import Finding, Grade, worst
from slipstream.draft.checkpoint import save_draft
from tests.tiny_engine import TINY, tiny_draft, tiny_target
from tests.unit.doctor.patients import copied, tensor

AUTO = CaptureConvention.AUTO


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("draft")
    draft = tiny_draft(tiny_target())
    save_draft(path, draft.model, draft.target_ids, target=TINY, dtype=torch.float32)
    return path


def looked_at(folder: Path, *, target=TINY, has_template: bool = True, known=AS_DECLARED) -> dict[str, Finding]:
    found = compatibility(open_draft(folder), target, convention=AUTO, has_template=has_template, known=known)
    return {each.name: each for each in found if each.grade is not Grade.HEALTHY}


def test_a_draft_that_fits_is_healthy_throughout(folder: Path) -> None:
    found = compatibility(open_draft(folder), TINY, convention=AUTO, has_template=True)
    assert worst(each.grade for each in found) is Grade.HEALTHY
    names = {"hidden size", "capture layers", "feature width", "norm flags", "head", "d2t", "RoPE", "length", "dtype"}
    assert names <= {each.name for each in found}


@pytest.mark.parametrize(
    ("config", "name", "words"),
    [
        ({"target_hidden_size": 128}, "hidden size", "reads states of 128"),
        ({"vocab_size": 999}, "vocabulary", "knows 999 tokens"),
        ({"draft_vocab_size": 70}, "head", "80 rows but draft_vocab_size is 70"),
        ({"eagle_aux_hidden_state_layer_ids": [5, 4, 2]}, "capture layers", "do not ascend"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4]}, "capture layers", "reads 3 states but the config names 2"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 99]}, "capture layers", "name no states"),
        ({"fc_norm": True}, "norm flags", "sets fc_norm but the checkpoint has no such norm"),
        ({"norm_before_fc": True}, "norm flags", "sets norm_before_fc"),
        ({"mask_hidden": True}, "config", "P-EAGLE"),
        ({"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}, "hidden size", "states of 32"),
    ],
)
def test_what_cannot_work_is_broken(folder: Path, tmp_path: Path, config: dict, name: str, words: str) -> None:
    found = looked_at(copied(folder, tmp_path, config=config))[name]
    assert found.grade is Grade.BROKEN
    assert words in found.says
    assert found.remedy


@pytest.mark.parametrize(
    ("config", "name", "words"),
    [
        ({"rope_theta": 5e5}, "RoPE", "theta 500000; the target's is default, theta 10000"),
        ({"max_position_embeddings": 128}, "length", "made for 128 positions"),
        ({"rms_norm_eps": 1e-6}, "norm epsilon", "1e-06"),
        ({"torch_dtype": "float8"}, "dtype", "float8"),
    ],
)
def test_what_may_cost_acceptance_is_a_warning(
    folder: Path, tmp_path: Path, config: dict, name: str, words: str
) -> None:
    found = looked_at(copied(folder, tmp_path, config=config))
    assert list(found) == [name]
    assert found[name].grade is Grade.WARNING
    assert words in found[name].says


def test_another_end_of_text_and_a_target_without_template_are_warnings(folder: Path, tmp_path: Path) -> None:
    target = replace(TINY, eos_ids=(2,))
    found = looked_at(copied(folder, tmp_path, config={"eos_token_id": 7}), target=target, has_template=False)
    assert {name: each.grade for name, each in found.items()} == {
        "end of text": Grade.WARNING,
        "chat template": Grade.WARNING,
    }


def test_every_way_in_which_a_map_is_broken_is_told_apart(folder: Path, tmp_path: Path) -> None:
    d2t = tensor(folder, "d2t")
    doubled, outside = d2t.clone(), d2t.clone()
    doubled[1], outside[-1] = doubled[0] - 1, 500
    cases = {
        "zeros": (torch.zeros_like(d2t), "all zeros", "--draft-d2t mask"),
        "ids": (d2t + torch.arange(80), "outside of 0..119", "--draft-d2t ids"),
        "missing": (None, "there is no d2t", "--draft-d2t mask"),
        "short": (d2t[:-1].clone(), "shape [79] where 80", "--draft-d2t mask"),
        "doubled": (doubled, "1 of them come twice", "--draft-d2t mask"),
        "outside": (outside, "outside of 0..119", "--draft-d2t mask"),
    }
    for name, (tensor_V, words, remedy) in cases.items():
        found = looked_at(copied(folder, tmp_path / name, tensors={"d2t": tensor_V}))["d2t"]
        assert found.grade is Grade.BROKEN
        assert words in found.says
        assert remedy in found.remedy


def test_a_mask_that_says_otherwise_is_a_warning(folder: Path, tmp_path: Path) -> None:
    t2d = tensor(folder, "t2d").roll(1)
    found = looked_at(copied(folder, tmp_path, tensors={"t2d": t2d}))["d2t"]
    assert (found.grade, "t2d marks others" in found.says) == (Grade.WARNING, True)


def test_norms_in_the_checkpoint_that_the_config_forgets_are_named(folder: Path, tmp_path: Path) -> None:
    norms = {f"fc_norm.{index}.weight": torch.ones(TINY.hidden_size) for index in range(3)}
    found = looked_at(copied(folder, tmp_path, tensors=norms))["norm flags"]
    assert '"fc_norm": true' in found.remedy


def test_an_fc_of_no_whole_number_of_states_is_broken(folder: Path, tmp_path: Path) -> None:
    found = looked_at(copied(folder, tmp_path, tensors={"fc.weight": torch.zeros(TINY.hidden_size, 100)}))
    assert "where [64, 192] is expected" in found["feature width"].says


def test_a_target_with_another_rope_scaling_is_named(folder: Path) -> None:
    target = replace(TINY, rope=RopeConfig(theta=1e6))
    assert "theta 1e+06" in looked_at(folder, target=target)["RoPE"].says


def test_what_the_user_knows_better_is_not_complained_of(folder: Path, tmp_path: Path) -> None:
    zeros, ids = torch.zeros(80, dtype=torch.int64), {"eagle_aux_hidden_state_layer_ids": [5, 4, 2]}
    wrong = copied(folder, tmp_path, config=ids, tensors={"d2t": zeros})
    assert set(looked_at(wrong)) == {"capture layers", "d2t"}
    assert looked_at(wrong, known=DraftWiring(layers=(2, 4, 5), map_reading=MapReading.MASK)) == {}
    found = looked_at(wrong, known=DraftWiring(layers=(2, 4)))
    assert "does not name 3 layers" in found["capture layers"].says
