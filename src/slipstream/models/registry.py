"""Which architecture is built by which file; adding a model is one row here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from slipstream.config.model import ModelConfig
from slipstream.models import llama, mistral, qwen2, qwen3
from slipstream.models.decoder import Decoder
from slipstream.parallel.group import Group, SoloGroup
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
    """Build a target and fill it from a checkpoint; nothing is held twice.

    Raises:
        ValueError: unknown architecture, or the checkpoint does not fit the config.
    """
    entry = entry_of(config)
    with torch.device("meta"):
        model = entry.build(config, group=group or SoloGroup(), max_position=max_position)
    tied = ("lm_head.weight",) if config.tie_embeddings else ()
    load_weights(model, source, entry.names(config), device=device, dtype=dtype, also_known=tied, on_tensor=on_tensor)
    if config.tie_embeddings:
        place(model, "head.weight", model.embed.weight.data)
    model.rope.to(device)
    return model.eval()


def dummy_target(
    config: ModelConfig, *, device: torch.device, dtype: torch.dtype, max_position: int, seed: int = 0
) -> Decoder:
    """A target with small random weights, for tests and for timing shapes without a checkpoint."""
    model = entry_of(config).build(config, group=SoloGroup(), max_position=max_position)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        fill = torch.randn(parameter.shape, generator=generator) * 0.05
        parameter.data = fill + 1 if name.endswith("norm.weight") else fill
    return model.to(device=device, dtype=dtype).eval()
