"""EAGLE-3 checkpoints of every layout load alike; a file that does not fit names its first mismatch."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipstream.config.draft import DraftConfig
from slipstream.draft.checkpoint import LoadedDraft, load_draft, save_draft
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.parallel.group import SoloGroup
from tests.tiny_engine import CPU, TINY, tiny_draft, tiny_target


@pytest.fixture(scope="module")
def embedding() -> Tensor:
    return tiny_target().embed.weight.data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tiny_target()
    draft = tiny_draft(target, num_layers=2)
    save_draft(tmp_path, draft.model, draft.target_ids, target=TINY, dtype=torch.float32)
    return tmp_path


def load(folder: Path, embedding: Tensor | None, *, target: object = TINY) -> LoadedDraft:
    return load_draft(
        folder,
        target=target,
        embedding=embedding,
        max_position=512,
        device=CPU,
        dtype=torch.float32,  # type: ignore[arg-type]
    )


def edit(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)


def configure(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_a_written_draft_reads_back_bit_for_bit(folder: Path, embedding: Tensor) -> None:
    before, after = tiny_draft(tiny_target(), num_layers=2), load(folder, embedding)
    assert torch.equal(after.target_ids, before.target_ids)
    assert after.shares_embedding
    for (name, mine), (_, theirs) in zip(before.model.named_parameters(), after.model.named_parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_native_tensors_have_the_names_and_shapes_of_the_format(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert tuple(tensors["midlayer.self_attn.q_proj.weight"].shape) == (64, 128)
    assert tuple(tensors["fc.weight"].shape) == (64, 192)
    assert tensors["d2t"].dtype == torch.int64
    assert "embed_tokens.weight" not in tensors
    ids = tensors["d2t"] + torch.arange(80)
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], ids)


LAYOUTS = {
    "layers.0 names": lambda t: {name.replace("midlayer.", "layers.0."): value for name, value in t.items()},
    "without t2d": lambda t: {name: value for name, value in t.items() if name != "t2d"},
    "with rotary buffers": lambda t: {**t, "midlayer.self_attn.rotary_emb.inv_freq": torch.zeros(8)},
    "in fp16": lambda t: {n: v.half() if v.is_floating_point() else v for n, v in t.items()},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_in_the_wild_load(folder: Path, embedding: Tensor, layout: str) -> None:
    edit(folder, LAYOUTS[layout])
    assert load(folder, embedding).model.fc.weight.shape == (64, 192)


def test_a_pytorch_bin_loads(folder: Path, embedding: Tensor) -> None:
    file = folder / "model.safetensors"
    torch.save(load_file(file), folder / "pytorch_model.bin")
    file.unlink()
    assert load(folder, embedding).model.fc.weight.shape == (64, 192)


def test_rope_reaches_the_targets_context_whatever_the_drafts_config_says(folder: Path, embedding: Tensor) -> None:
    configure(folder, max_position_embeddings=16)
    assert load(folder, embedding).model.rope.cos_PF.shape[0] == 512


def test_own_embeddings_are_shared_only_when_they_are_the_targets(folder: Path, embedding: Tensor) -> None:
    edit(folder, lambda t: {**t, "embed_tokens.weight": embedding.clone()})
    assert load(folder, embedding).shares_embedding
    edit(folder, lambda t: {**t, "embed_tokens.weight": embedding + 1})
    own = load(folder, embedding)
    assert not own.shares_embedding
    assert torch.equal(own.model.embed.weight, embedding + 1)


def varied(**changes: Any) -> DraftConfig:
    """The tiny draft's config with changes to it and to its body."""
    config = tiny_draft(tiny_target()).model.config
    body = replace(config.body, **{name: changes.pop(name) for name in tuple(changes) if hasattr(config.body, name)})
    return replace(config, body=body, **changes)


VARIANTS = {
    "q/k norms": {"qk_norm": True},
    "biases on QKV alone": {"qkv_bias": True},
    "biases everywhere": {"qkv_bias": True, "output_bias": True, "fc_bias": True},
    "one norm before fc": {"norm_before_fc": True},
    "a norm a chunk": {"fc_norm": True, "norm_output": True},
    "three layers": {"num_layers": 3, "norm_before_residual": True},
    "another width": {"hidden_size": 32},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_survives_being_written_and_read(tmp_path: Path, embedding: Tensor, variant: str) -> None:
    model = Eagle3Draft(varied(**VARIANTS[variant]), group=SoloGroup(), max_position=512)
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    ids = torch.arange(20, 100)
    save_draft(tmp_path, model, ids, target=TINY, shares_embedding=False, dtype=torch.float32)
    after = load(tmp_path, embedding)
    assert not after.shares_embedding
    assert torch.equal(after.target_ids, ids)
    found = dict(after.model.named_parameters())
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(value, found[name]) for name, value in model.named_parameters())


def test_embeddings_of_another_width_are_not_left_out(tmp_path: Path) -> None:
    model = Eagle3Draft(varied(hidden_size=32), group=SoloGroup(), max_position=512)
    with pytest.raises(ValueError, match="embeddings of its own"):
        save_draft(tmp_path, model, torch.arange(20, 100), target=TINY)


def test_feature_norms_load_under_their_older_names(tmp_path: Path, embedding: Tensor) -> None:
    model = Eagle3Draft(varied(fc_norm=True), group=SoloGroup(), max_position=512)
    for parameter in model.parameters():
        parameter.data = torch.ones(parameter.shape)
    save_draft(tmp_path, model, torch.arange(20, 100), target=TINY, dtype=torch.float32)
    configure(tmp_path, fc_norm=None, use_aux_norm=True)
    older = {f"fc_norm.{index}.weight": f"aux_norm_{name}.weight" for index, name in enumerate(("low", "mid", "high"))}
    edit(tmp_path, lambda t: {older.get(name, name): value for name, value in t.items()})
    assert len(load(tmp_path, embedding).model.feature_norms) == 3


def without(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def with_tensor(name: str, value: Tensor) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {**tensors, name: value}


BROKEN = [
    (without("d2t"), "no d2t map"),
    (with_tensor("d2t", torch.zeros(80, dtype=torch.int64)), "all zeros"),
    (with_tensor("d2t", torch.full((80,), 100)), "outside the target's vocabulary"),
    (with_tensor("d2t", torch.arange(80).flip(0)), "ascending"),
    (with_tensor("d2t", torch.arange(79)), "d2t has shape"),
    (without("fc.weight"), "lacks tensor 'fc.weight'"),
    (with_tensor("fc.weight", torch.zeros(64, 128)), "fc.weight' is \\[64, 128\\]"),
    (with_tensor("surprise", torch.zeros(3)), "'surprise' \\[3\\] belongs to nothing"),
    (without("lm_head.weight"), "no lm_head.weight"),
]


@pytest.mark.parametrize(("change", "reason"), BROKEN, ids=[reason for _, reason in BROKEN])
def test_a_broken_checkpoint_names_its_first_mismatch(
    folder: Path, embedding: Tensor, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], reason: str
) -> None:
    edit(folder, change)
    with pytest.raises(ValueError, match=reason):
        load(folder, embedding)


def test_a_draft_for_another_target_is_refused(folder: Path, embedding: Tensor) -> None:
    with pytest.raises(ValueError, match="vocabulary of 120 tokens but the target has 121"):
        load(folder, embedding, target=replace(TINY, vocab_size=121))
    configure(folder, target_hidden_size=64)
    with pytest.raises(ValueError, match="hidden size 64"):
        load(folder, torch.zeros(120, 32), target=replace(TINY, hidden_size=32))


def test_missing_embeddings_of_another_width_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="needs its own embeddings"):
        load(folder, None)


def test_a_map_that_does_not_fit_the_head_is_not_written(tmp_path: Path) -> None:
    draft = tiny_draft(tiny_target())
    with pytest.raises(ValueError, match="79 ids but the head 80 rows"):
        save_draft(tmp_path, draft.model, draft.target_ids[:-1], target=TINY)


def test_a_damaged_config_is_one_sentence(folder: Path, embedding: Tensor) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        load(folder, embedding)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has no config\.json"):
        load(folder, embedding)
