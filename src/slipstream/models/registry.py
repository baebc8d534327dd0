"""Which architecture is built by which file; adding a model is one row here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from slipstream.config.model import ModelConfig
from slipstream.models import llama, mistral, qwen2, qwen3
from slipstream.models.decoder import Decoder
from slipstream.parallel.cut import check_heads
from slipstream.parallel.group import Group, SoloGroup
from slipstream.weights.cut import cut_table
from slipstream.weights.dummy import fill_dummy
from slipstream.weights.loader import load_weights, place
from slipstream.weights.names import NameTable, decoder_names
from slipstream.weights.reader import TensorSource


class Build(Protocol):
    """A model file's constructor."""

    def __call__(self, config: ModelConfig, *, group: Group, max_position: int) -> Decoder:
        """Make an empty model."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How to build an architecture and read its checkpoints."""

    build: Build
    names: Callable[[ModelConfig], NameTable]


REGISTRY = {
    llama.ARCHITECTURE: Entry(build=llama.build, names=decoder_names),
    mistral.ARCHITECTURE: Entry(build=mistral.build, names=decoder_names),
    qwen2.ARCHITECTURE: Entry(build=qwen2.build, names=decoder_names),
    qwen3.ARCHITECTURE: Entry(build=qwen3.build, names=decoder_names),
}


def entry_of(config: ModelConfig) -> Entry:
    """The registry row of a config.

    Raises:
        ValueError: the architecture is unknown.
    """
    if config.architecture not in REGISTRY:
        raise ValueError(
            f"architecture {config.architecture!r} is not supported; slipstream runs {', '.join(sorted(REGISTRY))}"
        )
    return REGISTRY[config.architecture]


def load_target(
    config: ModelConfig,
    source: TensorSource,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_position: int,
    group: Group | None = None,
    on_tensor: Callable[[int], None] = lambda num_bytes: None,
) -> Decoder:
    """Build a rank's share of a target and fill it from a checkpoint; nothing is held twice.

    Raises:
        ValueError: unknown architecture, heads that the group cannot share, or the checkpoint does not fit the config.
    """
    entry, group = entry_of(config), group or SoloGroup()
    check_heads("the target", num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, size=group.size)
    with torch.device("meta"):
        model = entry.build(config, group=group, max_position=max_position)
    table = cut_table(entry.names(config), config, group)
    tied = ("lm_head.weight",) if config.tie_embeddings else ()
    load_weights(model, source, table, device=device, dtype=dtype, also_known=tied, on_tensor=on_tensor)
    if config.tie_embeddings:
        place(model, "head.weight", model.embed.weight.data)
    model.rope.to(device)
    return model.eval()


def dummy_target(
    config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_position: int,
    seed: int = 0,
    group: Group | None = None,
) -> Decoder:
    """A target with small random weights, for tests and for timing shapes without a checkpoint."""
    with torch.device("meta"):
        model = entry_of(config).build(config, group=group or SoloGroup(), max_position=max_position)
    fill_dummy(model, device=device, dtype=dtype, seed=seed, group=group)
    if config.tie_embeddings:
        place(model, "head.weight", model.embed.weight.data)
    model.rope.to(device)
    return model.eval()
