"""Read tensors from whatever a checkpoint is stored in."""

import json
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from slipstream.weights.gguf import GgufSource
from slipstream.weights.names import PartCut
from slipstream.weights.safetensors import SafetensorsSource
from slipstream.weights.spans import check_length, damaged, first_line, index_of, known

SAFETENSORS, BIN, GGUF = ".safetensors", (".bin", ".pt", ".pth"), ".gguf"


class TensorSource(Protocol):
    """Named tensors, on the CPU, in the dtype in which they are stored."""

    def names(self) -> tuple[str, ...]:
        """List the tensors."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Give a tensor's shape without reading it."""
        ...

    def position(self, name: str) -> tuple[str, int]:
        """Say where a tensor lies: its file, and a number that grows along the file."""
        ...

    def read(self, name: str, *cuts: PartCut) -> torch.Tensor:
        """Give one tensor, or what the cuts (at most one a dimension) leave of it; a view of the file where it can."""
        ...

    def read_into(self, out: torch.Tensor, name: str, *cuts: PartCut) -> None:
        """Fill `out`, of any dtype, with the same; several threads may call it at once.

        Raises:
            ValueError: the file fails, or has become shorter.
        """
        ...


def open_source(path: Path) -> TensorSource:
    """Open a checkpoint: a directory of Hugging Face's layout, or one .safetensors, .bin or .gguf file."""
    if path.is_dir():
        return _open_directory(path)
    if not path.is_file():
        raise ValueError(f"{path} does not exist; check the path")
    return _open_file(path)


class PickleSource:
    """One file written by torch.save, from which nothing but tensors is taken."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self._tensors: Mapping[str, torch.Tensor] = _load_pickle(path)
        self._num_bytes: int = path.stat().st_size

    def names(self) -> tuple[str, ...]:
        """List the tensors."""
        return tuple(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Give a tensor's shape."""
        return tuple(self.read(name).shape)

    def position(self, name: str) -> tuple[str, int]:
        """Say where a tensor lies: its file, and where that is mapped."""
        return str(self.path), self.read(name).data_ptr()

    def read(self, name: str, *cuts: PartCut) -> torch.Tensor:
        """Give one tensor, or what the cuts leave of it, mapped from the file where its format allows."""
        return self._tensors[known(name, self._tensors, self.path)][index_of(cuts)]

    def read_into(self, out: torch.Tensor, name: str, *cuts: PartCut) -> None:
        """Fill `out` with the same."""
        check_length(self.path, self._num_bytes)
        out.copy_(self.read(name, *cuts))


class ShardedSource:
    """Several files that together make one checkpoint."""

    def __init__(self, path: Path, shard_of: Mapping[str, TensorSource]) -> None:
        self.path: Path = path
        self._shard_of: Mapping[str, TensorSource] = shard_of

    def names(self) -> tuple[str, ...]:
        """List the tensors of all shards."""
        return tuple(self._shard_of)

    def shape(self, name: str) -> tuple[int, ...]:
        """Give a tensor's shape from the shard that holds it."""
        return self._holder(name).shape(name)

    def position(self, name: str) -> tuple[str, int]:
        """Say where a tensor lies: its file, and a number that grows along the file."""
        return self._holder(name).position(name)

    def read(self, name: str, *cuts: PartCut) -> torch.Tensor:
        """Give one tensor, or what the cuts leave of it, from the shard that holds it."""
        return self._holder(name).read(name, *cuts)

    def read_into(self, out: torch.Tensor, name: str, *cuts: PartCut) -> None:
        """Fill `out` with the same."""
        self._holder(name).read_into(out, name, *cuts)

    def _holder(self, name: str) -> TensorSource:
        return self._shard_of[known(name, self._shard_of, self.path)]


def _open_file(path: Path) -> TensorSource:
    """Open one file by its extension."""
    if path.suffix == SAFETENSORS:
        return SafetensorsSource(path)
    if path.suffix in BIN:
        return PickleSource(path)
    if path.suffix == GGUF:
        return GgufSource(path)
    raise ValueError(f"{path} is no checkpoint; give a directory, or a .safetensors, .bin or .gguf file")


def _open_directory(path: Path) -> TensorSource:
    """Open the first layout found, in the order in which Hugging Face looks for them."""
    for stem, suffix in (("model", SAFETENSORS), ("pytorch_model", ".bin")):
        if (path / f"{stem}{suffix}").is_file():
            return _open_file(path / f"{stem}{suffix}")
        if (path / f"{stem}{suffix}.index.json").is_file():
            return _open_index(path / f"{stem}{suffix}.index.json")
        if shards := _loose_files(path, suffix):
            return _open_shards(path, shards)
    if shards := _loose_files(path, GGUF):
        return _open_shards(path, shards)
    raise ValueError(f"{path} holds no weights; it needs a .safetensors, .bin or .gguf file")


def _loose_files(path: Path, suffix: str) -> list[Path]:
    """List the files of a kind, without Mistral's second copy of everything or a trainer's leavings."""
    found = sorted(path.glob(f"*{suffix}"))
    aside = ("consolidated", "training_args", "optimizer", "scheduler", "rng_state", "mmproj")
    return [file for file in found if not file.name.startswith(aside)] or found


def _open_shards(path: Path, shards: Sequence[Path]) -> TensorSource:
    """Open files that no index lists; each tensor may stand in one only."""
    if len(shards) == 1:
        return _open_file(shards[0])
    if shards[0].suffix == GGUF:
        raise ValueError(f"{path} holds {len(shards)} .gguf files; give the path of the one to use")
    found: dict[str, TensorSource] = {}
    for shard in shards:
        source = _open_file(shard)
        if double := next((name for name in source.names() if name in found), None):
            raise ValueError(f"{path} has {double} in more than one file; keep one copy, or add an index.json")
        found.update(dict.fromkeys(source.names(), source))
    return ShardedSource(path, found)


def _open_index(index: Path) -> TensorSource:
    """Open the shards that an index lists, and check that they hold what it says."""
    shard_of = _read_index(index)
    shards = {name: _open_shard(index, name) for name in sorted(set(shard_of.values()))}
    held = {name: set(shard.names()) for name, shard in shards.items()}
    for tensor, shard in shard_of.items():
        if tensor not in held[shard]:
            raise ValueError(f"{index} says that {shard} holds {tensor}, which it does not; download the model again")
    return ShardedSource(index.parent, {tensor: shards[shard] for tensor, shard in shard_of.items()})


def _read_index(index: Path) -> dict[str, str]:
    """Read which file holds which tensor; only files beside the index are taken."""
    try:
        shard_of = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        plain = all(Path(shard).name == shard for shard in shard_of.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{index} is not an index of weights; download it again") from None
    if not plain:
        raise ValueError(f"{index} points outside its directory; download the model from where it was published")
    return shard_of


def _open_shard(index: Path, name: str) -> TensorSource:
    shard = index.parent / name
    if not shard.is_file():
        raise ValueError(f"{shard} is missing though {index.name} lists it; download the model again")
    return _open_file(shard)


def _load_pickle(path: Path) -> dict[str, torch.Tensor]:
    """Load a state dict, mapped where the format allows, never running code from it."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than tensors, or is damaged ({first_line(error)}); convert it to safetensors"
        ) from None
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        raise damaged(path, error) from None
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ValueError(f"{path} is not a plain table of tensors; save the model's state dict alone")
    return found
