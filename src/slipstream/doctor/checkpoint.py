"""Open a target and a draft to be examined: what the draft declares is read as far as it can be, and nothing is refused
that an examination could name.

Shape letters: V draft vocabulary, W target vocabulary, D draft hidden, F feature width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.config.draft import CaptureConvention, DraftConfig, DraftWiring, MapReading, default_captures
from slipstream.config.model import ModelConfig
from slipstream.doctor.wiring import Choices, Wiring
from slipstream.draft.checkpoint import load_draft
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.draft.names import embedding_name
from slipstream.draft.settings import CONVENTION_KEY, draft_config, layer_ids
from slipstream.draft.vocabulary import identity_ids
from slipstream.models.decoder import Decoder
from slipstream.parallel.group import SoloGroup
from slipstream.weights.folder import read_config
from slipstream.weights.loader import place
from slipstream.weights.reader import TensorSource, open_source


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFiles:
    """A draft's folder, opened."""

    path: Path
    raw: Mapping[str, Any]  # config.json
    source: TensorSource

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's shape; None where there is none of this name."""
        return tuple(self.source.shape(name)) if name in self.source.names() else None

    @property
    def declared_ids(self) -> tuple[int, ...] | None:
        """Layer ids as config.json writes them."""
        return layer_ids(self.raw)

    @property
    def has_embedding(self) -> bool:
        """Whether the checkpoint has embeddings."""
        return embedding_name(set(self.source.names())) is not None


def open_draft(path: Path) -> DraftFiles:
    """Open a draft's folder.

    Raises:
        ValueError: it is no folder with a config and weights.
    """
    if path.suffix == ".gguf":
        raise ValueError(f"{path} is a GGUF; a draft is a folder with an EAGLE-3 checkpoint")
    return DraftFiles(path=path, raw=read_config(path), source=open_source(path))


def declared_layers(files: DraftFiles, target: ModelConfig, convention: CaptureConvention) -> tuple[int, ...] | None:
    """After how many layers the states are taken, in fc's order, as the config has it; None if that cannot be said.

    Ids that the engine refuses, such as descending ones, are read all the same.
    """
    ids, speculators = files.declared_ids, "transformer_layer_config" in files.raw
    if ids is None:
        try:
            return default_captures(target.num_layers)
        except ValueError:
            return None
    given = (files.raw.get("eagle_config") or {}).get(CONVENTION_KEY)
    if convention is CaptureConvention.AUTO and given in [each.value for each in CaptureConvention]:
        convention = CaptureConvention(given)
    output = convention is CaptureConvention.OUTPUT
    if convention is CaptureConvention.AUTO:
        output = not speculators and ids[:1] == (1,)
    layers = tuple(each + 1 for each in ids) if output else ids
    inside = all(0 <= layer <= target.num_layers for layer in layers)
    return layers if inside and len(set(layers)) == len(layers) else None


def settled_config(files: DraftFiles, target: ModelConfig, layers: tuple[int, ...]) -> DraftConfig:
    """The draft's shape with layers that are known to be readable.

    Raises:
        ValueError: the config does not fit the target, or asks for what is not supported.
    """
    known = DraftWiring(layers=layers)
    return draft_config(files.raw, target=target, convention=CaptureConvention.AUTO, wiring=known)


def readable_maps(files: DraftFiles, config: DraftConfig) -> dict[MapReading, Tensor]:
    """Target ids [V] under each reading of the vocabulary map that gives ids inside the target's vocabulary."""
    vocab_size, count = config.body.vocab_size, config.draft_vocab_size
    found: dict[MapReading, Tensor] = {}
    if files.shape("d2t") == (count,):
        raw_V = files.source.read("d2t").to(torch.int64)
        found = {MapReading.OFFSETS: raw_V + torch.arange(count), MapReading.IDS: raw_V}
    elif not config.pruned:
        found = {MapReading.OFFSETS: identity_ids(count)}
    if files.shape("t2d") == (vocab_size,):
        marked_V = files.source.read("t2d").to(torch.bool).nonzero()[:, 0]
        if len(marked_V) == count:
            found[MapReading.MASK] = marked_V
    found[MapReading.FIRST] = identity_ids(count)
    return {reading: ids_V for reading, ids_V in found.items() if _inside(ids_V, vocab_size)}


def _inside(ids_V: Tensor, vocab_size: int) -> bool:
    return int(ids_V.min()) >= 0 and int(ids_V.max()) < vocab_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """A loaded draft that can be wired in any way."""

    draft: Eagle3Draft  # its fc untouched
    target: Decoder
    declared: Wiring
    choices: Choices

    def wired(self, wiring: Wiring) -> Eagle3Draft:
        """The draft under a wiring; it shares all tensors."""
        body = self.draft.config.body
        config = replace(
            self.draft.config,
            norm_output=wiring.norm_output,
            norm_before_residual=wiring.norm_before_residual,
            body=body if wiring.own_rope else replace(body, rope=self.target.config.rope),
        )
        with torch.device("meta"):
            made = Eagle3Draft(config, group=SoloGroup(), max_position=self.target.rope.cos_PF.shape[0])
        for name, parameter in self.draft.named_parameters():
            place(made, name, parameter.data)
        if not wiring.own_embedding:
            place(made, "embed.weight", self.target.embed.weight.data.to(made.norm.weight.dtype))
        made.rope.to(self.target.embed.weight.device)
        return made.eval()

    @property
    def has_a_map(self) -> bool:
        """Whether the checkpoint says what the head's rows mean, in d2t or in t2d."""
        zeroed = self.declared.map_reading is MapReading.FIRST
        return not zeroed or MapReading.MASK in self.choices.maps

    def map_of(self, wiring: Wiring) -> Tensor:
        """Target ids [V] of the draft's, on its device."""
        return self.choices.maps[wiring.map_reading].to(self.draft.norm.weight.device)


def load_patient(files: DraftFiles, target: Decoder, layers: tuple[int, ...]) -> Patient:
    """Load a draft so that every wiring can be tried on it.

    layers: as declared, in fc's order.

    Raises:
        ValueError: the checkpoint does not fit its config or the target.
    """
    config = settled_config(files, target.config, layers)
    maps = readable_maps(files, config)
    weight = target.embed.weight.data
    loaded = load_draft(
        files.path,
        target=target.config,
        embedding=weight,
        head=target.head.weight.data,
        max_position=target.rope.cos_PF.shape[0],
        device=weight.device,
        dtype=torch.float32,
        wiring=DraftWiring(layers=tuple(sorted(layers)), map_reading=MapReading.FIRST),
    )
    return Patient(
        draft=loaded.model,
        target=target,
        declared=Wiring(
            layers=layers,
            norm_output=config.norm_output,
            norm_before_residual=config.norm_before_residual,
            map_reading=MapReading.FIRST if _is_zeroed(maps, config) else MapReading.OFFSETS,
        ),
        choices=Choices(
            num_layers=target.config.num_layers,
            maps=maps,
            has_embedding=files.has_embedding
            and not loaded.shares_embedding
            and tuple(loaded.model.embed.weight.shape) == tuple(weight.shape),
            has_rope=config.body.rope != target.config.rope,
        ),
    )


def _is_zeroed(maps: Mapping[MapReading, Tensor], config: DraftConfig) -> bool:
    """Whether a pruned head has a d2t that says nothing: zeros, or none at all."""
    raw_V = maps.get(MapReading.IDS)
    return config.pruned and (MapReading.OFFSETS not in maps if raw_V is None else not bool(raw_V.any()))
