"""What is known better than a draft's checkpoint is taken instead of it, or refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.config.draft import AS_DECLARED, CaptureConvention, DraftWiring, MapReading
from slipstream.draft.checkpoint import LoadedDraft, load_draft, read_draft_config, save_draft
from tests.tiny_engine import CPU, TINY, tiny_draft, tiny_target

AUTO = CaptureConvention.AUTO


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draft = tiny_draft(tiny_target())
    save_draft(tmp_path, draft.model, draft.target_ids, target=TINY, dtype=torch.float32)
    return tmp_path


def load(folder: Path, wiring: DraftWiring) -> LoadedDraft:
    embedding = tiny_target().embed.weight.data
    return load_draft(
        folder, target=TINY, embedding=embedding, max_position=64, device=CPU, dtype=torch.float32, wiring=wiring
    )


def edit(folder: Path, **tensors: torch.Tensor | None) -> None:
    file = folder / "model.safetensors"
    changed = {**load_file(file), **tensors}
    save_file({name: value for name, value in changed.items() if value is not None}, file)


def test_an_fc_that_reads_its_layers_in_another_order_is_put_into_the_captures_order(folder: Path) -> None:
    right = load(folder, AS_DECLARED)
    low, middle, high = load_file(folder / "model.safetensors")["fc.weight"].split(TINY.hidden_size, dim=1)
    edit(folder, **{"fc.weight": torch.cat((high, low, middle), dim=1).contiguous()})
    reordered = load(folder, DraftWiring(layers=(5, 2, 4)))
    assert reordered.model.config.captures == (2, 4, 5)
    assert torch.equal(reordered.model.fc.weight, right.model.fc.weight)


@pytest.mark.parametrize("flag", ["fc_norm", "norm_before_fc"])
def test_the_norms_of_the_features_move_with_their_layers(folder: Path, flag: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, flag: True}))
    size = TINY.hidden_size
    parts = [torch.full((size,), float(number)) for number in range(3)]
    if flag == "fc_norm":
        edit(folder, **{f"fc_norm.{index}.weight": part for index, part in enumerate(parts)})
    else:
        edit(folder, **{"input_norm.weight": torch.cat(parts)})
    norms = load(folder, DraftWiring(layers=(5, 2, 4))).model.feature_norms
    assert torch.cat([norm.weight for norm in norms])[::size].tolist() == [1, 2, 0]


def test_layers_and_norms_that_are_known_override_the_config(folder: Path) -> None:
    wiring = DraftWiring(layers=(3, 1), norm_output=True, norm_before_residual=True)
    config = read_draft_config(folder, target=TINY, convention=AUTO, wiring=wiring)
    assert (config.captures, config.norm_output, config.norm_before_residual) == ((1, 3), True, True)
    assert config.feature_size == 2 * TINY.hidden_size


def test_layers_that_the_config_names_wrongly_no_longer_matter(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eagle_aux_hidden_state_layer_ids": [5, 4, 2]}))
    with pytest.raises(ValueError, match="ascend"):
        load(folder, AS_DECLARED)
    assert load(folder, DraftWiring(layers=(2, 4, 5))).model.config.captures == (2, 4, 5)


@pytest.mark.parametrize("layers", [(), (2, 2, 3), (-1, 2, 3), (2, 3, 9)])
def test_layers_that_repeat_or_lie_outside_are_refused(folder: Path, layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="--draft-layers"):
        load(folder, DraftWiring(layers=layers))


def test_every_reading_of_the_map_finds_it_where_it_is(folder: Path) -> None:
    ids = load(folder, AS_DECLARED).target_ids
    assert torch.equal(load(folder, DraftWiring(map_reading=MapReading.MASK)).target_ids, ids)
    assert load(folder, DraftWiring(map_reading=MapReading.FIRST)).target_ids.tolist() == list(range(len(ids)))
    edit(folder, d2t=ids)
    assert torch.equal(load(folder, DraftWiring(map_reading=MapReading.IDS)).target_ids, ids)


def test_a_zeroed_map_names_the_mask_as_a_way_out(folder: Path) -> None:
    edit(folder, d2t=torch.zeros(80, dtype=torch.int64))
    with pytest.raises(ValueError, match="--draft-d2t mask"):
        load(folder, AS_DECLARED)


@pytest.mark.parametrize(("reading", "name"), [(MapReading.IDS, "d2t"), (MapReading.MASK, "t2d")])
def test_a_reading_of_a_tensor_that_is_not_there_is_refused(folder: Path, reading: MapReading, name: str) -> None:
    edit(folder, **{name: None})
    with pytest.raises(ValueError, match=f"reads {name}, which the draft's checkpoint has not"):
        load(folder, DraftWiring(map_reading=reading))


def test_a_mask_that_does_not_fit_the_head_is_refused(folder: Path) -> None:
    edit(folder, t2d=torch.ones(TINY.vocab_size, dtype=torch.bool))
    with pytest.raises(ValueError, match="marks 120 ids but its head has 80 rows"):
        load(folder, DraftWiring(map_reading=MapReading.MASK))
