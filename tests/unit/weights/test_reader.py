"""Checkpoints of every layout read alike, and broken ones end in one sentence."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from slipstream.weights.gguf import GgufSource
from slipstream.weights.reader import TensorSource, open_source
from tests.unit.weights import tiny_gguf

TENSORS = {
    "model.embed_tokens.weight": torch.arange(12, dtype=torch.bfloat16).reshape(4, 3),
    "model.norm.weight": torch.ones(3),
    "d2t": torch.tensor([0, 2, 5]),
}
FIRST, SECOND = {"d2t": TENSORS["d2t"]}, {name: TENSORS[name] for name in list(TENSORS)[:2]}


def _index(folder: Path, stem: str, shard_of: dict[str, str]) -> None:
    (folder / f"{stem}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))


def _sharded(folder: Path, save: Callable[[dict, Path], None], *, stem: str, suffix: str) -> None:
    shards = {f"{stem}-00001-of-00002{suffix}": FIRST, f"{stem}-00002-of-00002{suffix}": SECOND}
    for name, tensors in shards.items():
        save(tensors, folder / name)
    _index(folder, f"{stem}{suffix}", {tensor: name for name, tensors in shards.items() for tensor in tensors})


def single_safetensors(folder: Path) -> None:
    save_file(TENSORS, folder / "model.safetensors")


def draft_safetensors(folder: Path) -> None:
    save_file(TENSORS, folder / "draft.safetensors")


def sharded_safetensors(folder: Path) -> None:
    _sharded(folder, save_file, stem="model", suffix=".safetensors")


def unindexed_safetensors(folder: Path) -> None:
    save_file(FIRST, folder / "a.safetensors")
    save_file(SECOND, folder / "b.safetensors")


def mistral_safetensors(folder: Path) -> None:
    unindexed_safetensors(folder)
    save_file({"tok_embeddings.weight": torch.ones(1)}, folder / "consolidated.safetensors")


def single_bin(folder: Path) -> None:
    torch.save(TENSORS, folder / "pytorch_model.bin")


def old_bin(folder: Path) -> None:
    torch.save(TENSORS, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def sharded_bin(folder: Path) -> None:
    _sharded(folder, torch.save, stem="pytorch_model", suffix=".bin")


LAYOUTS = (
    single_safetensors,
    draft_safetensors,
    sharded_safetensors,
    unindexed_safetensors,
    mistral_safetensors,
    single_bin,
    old_bin,
    sharded_bin,
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_tensors(tmp_path: Path, layout: Callable[[Path], None]) -> None:
    layout(tmp_path)
    _check(open_source(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_single_file_opens_by_its_own_path(tmp_path: Path, name: str) -> None:
    single_safetensors(tmp_path)
    single_bin(tmp_path)
    _check(open_source(tmp_path / name))


def _check(source: TensorSource) -> None:
    assert set(source.names()) == set(TENSORS)
    for name, tensor in TENSORS.items():
        read = source.read(name)
        assert source.shape(name) == tuple(tensor.shape)
        assert (read.dtype, read.device.type) == (tensor.dtype, "cpu")
        assert torch.equal(read, tensor)


def test_a_gguf_file_opens_by_path_or_from_its_directory(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf")
    assert isinstance(open_source(tmp_path / "m.gguf"), GgufSource)
    assert isinstance(open_source(tmp_path), GgufSource)


def test_two_gguf_files_in_a_directory_must_be_chosen_from(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "a.gguf")
    tiny_gguf.write(tmp_path / "b.gguf")
    with pytest.raises(ValueError, match=r"holds 2 \.gguf files; give the path"):
        open_source(tmp_path)


@pytest.mark.parametrize("layout", [single_safetensors, single_bin, old_bin])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.95])
def test_a_file_cut_short_is_one_sentence(tmp_path: Path, layout: Callable[[Path], None], share: float) -> None:
    layout(tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ValueError, match=rf"{path.name} (is|holds) .*; ") as caught:
        open_source(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_damaged_archive_is_one_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("nothing", "here")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is damaged"):
        open_source(tmp_path)


class Code:
    """What a malicious checkpoint would carry."""


def test_a_file_with_more_than_tensors_is_refused_unrun(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(1), "code": Code()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"holds more than tensors.*convert it to safetensors"):
        open_source(tmp_path)


def test_a_training_checkpoint_is_not_a_table_of_tensors(tmp_path: Path) -> None:
    torch.save({"model": {"weight": torch.ones(1)}, "step": 3}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="not a plain table of tensors"):
        open_source(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    sharded_safetensors(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model-00002-of-00002\.safetensors is missing though .*index.json lists it"):
        open_source(tmp_path)


def test_an_index_naming_a_tensor_that_no_shard_holds_is_refused(tmp_path: Path) -> None:
    single_safetensors(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "shard.safetensors")
    _index(tmp_path, "model.safetensors", {"d2t": "shard.safetensors", "lm_head.weight": "shard.safetensors"})
    with pytest.raises(ValueError, match=r"says that shard\.safetensors holds lm_head\.weight, which it does not"):
        open_source(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_a_broken_index_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=r"index\.json is not an index of weights; download it again"):
        open_source(tmp_path)


def test_an_index_may_not_point_outside_its_directory(tmp_path: Path) -> None:
    _index(tmp_path, "model.safetensors", {"a": "../elsewhere.safetensors"})
    with pytest.raises(ValueError, match="points outside its directory"):
        open_source(tmp_path)


def test_one_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors")
    save_file(FIRST, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match="has d2t in more than one file"):
        open_source(tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS[:3] + LAYOUTS[5:])
def test_a_missing_tensor_is_named(tmp_path: Path, layout: Callable[[Path], None]) -> None:
    layout(tmp_path)
    source = open_source(tmp_path)
    for ask in (source.read, source.shape):
        with pytest.raises(ValueError, match=r"has no tensor fc\.weight"):
            ask("fc.weight")


def test_a_directory_without_weights_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no weights; it needs a \.safetensors"):
        open_source(tmp_path)


def test_a_path_that_is_no_checkpoint_says_what_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        open_source(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match="is no checkpoint; give a directory"):
        open_source(tmp_path / "notes.txt")
