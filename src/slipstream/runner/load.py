"""From paths to models on a device: the target, its draft, and what they take.

Raises ValueError with one sentence for whatever does not fit.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from slipstream.config.draft import CaptureConvention
from slipstream.config.hf import model_config
from slipstream.config.model import ModelConfig
from slipstream.draft.checkpoint import LoadedDraft, load_draft, read_draft_config
from slipstream.layers.linear import pack_linears
from slipstream.models.decoder import Decoder
from slipstream.models.registry import entry_of, load_target
from slipstream.weights.folder import read_config
from slipstream.weights.reader import open_source


def read_model_config(path: Path) -> ModelConfig:
    """The shape of the model in a directory or a .gguf file; unknown architectures are refused here."""
    config = model_config(read_config(path))
    entry_of(config)
    return config


def draft_shape(path: Path | None, target: ModelConfig, convention: CaptureConvention) -> ModelConfig | None:
    """The widths of a draft's layers, read before anything large is; None without a draft."""
    return None if path is None else read_draft_config(path, target=target, convention=convention).body


def load_models(
    model_path: Path,
    draft_path: Path | None,
    *,
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    max_position: int,
    convention: CaptureConvention,
    on_tensor: Callable[[int], None] = lambda num_bytes: None,
) -> tuple[Decoder, LoadedDraft | None]:
    """Load a target and a draft; on a CPU their weights end up packed for oneDNN.

    max_position: the served context; sizes both RoPE tables.
    """
    source = open_source(model_path)
    target = load_target(config, source, device=device, dtype=dtype, max_position=max_position, on_tensor=on_tensor)
    draft = None
    if draft_path is not None:
        draft = load_draft(
            draft_path,
            target=config,
            embedding=target.embed.weight.data,
            head=target.head.weight.data,
            max_position=max_position,
            device=device,
            dtype=dtype,
            convention=convention,
        )
        target.capture(draft.model.config.captures)
        pack_linears(draft.model)
    pack_linears(target)
    return target, draft


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of a target's parameters in `dtype`."""
    total = 0
    for parts in entry_of(config).names(config).values():
        for part in parts:
            total += torch.Size(part.shape).numel()
    return total * dtype.itemsize


def kv_entry_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one token's keys and values in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
