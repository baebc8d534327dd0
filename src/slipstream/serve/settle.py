"""Settle at the door whatever was left to `auto`: device, dtype, draft, shape, sizes.

Below this file every setting is concrete (decision 13).
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from slipstream.config.engine import EngineConfig
from slipstream.config.model import ModelConfig
from slipstream.config.speculation import Speculation, speculation
from slipstream.runner.load import kv_entry_bytes
from slipstream.weights.shipped import shipped_draft, short_name
from slipstream.weights.store import resolve_model

DEFAULT_STEPS = 4
GIB = 1 << 30
CPU_KV_GIB = 2.0
CUDA_KV_SHARE = 0.6  # of what the weights leave free
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where the models are."""

    model: Path
    draft: Path | None


def settle_paths(model: str, draft: str | None) -> Paths:
    """Find the target and its draft; draft "auto" is the shipped one, if this model has one."""
    model_path = resolve_model(model)
    if draft is None:
        return Paths(model=model_path, draft=None)
    if draft == "auto":
        return Paths(model=model_path, draft=shipped_draft(short_name(Path(model))))
    return Paths(model=model_path, draft=resolve_model(draft))


def settle_device(device: str) -> torch.device:
    """CUDA when there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        settled = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device {device!r} is unknown; use auto, cpu, cuda or cuda:N") from None
    if settled.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for but torch sees no CUDA device; use --device cpu")
    if settled.type == "cuda" and (settled.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device} was asked for but torch sees {torch.cuda.device_count()}; count them from 0")
    if settled.type not in ("cpu", "cuda"):
        raise ValueError(f"device {device!r} is not supported; use auto, cpu, cuda or cuda:N")
    return settled


def settle_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """fp32 on a CPU, bf16 on CUDA."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown; use auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def settle_speculation(
    steps: int | None, topk: int | None, draft_tokens: int | None, *, has_draft: bool
) -> Speculation:
    """The cycle's shape: a chain of 4 with a draft, plain decoding without.

    Raises:
        ValueError: the numbers contradict each other, or there is nothing to speculate with.
    """
    if not has_draft and any(value for value in (steps, draft_tokens)):
        raise ValueError("steps and draft_tokens need a draft, and there is none; pass --draft, or leave them out")
    if steps is None:
        steps = DEFAULT_STEPS if has_draft else 0
        if topk in (None, 1) and draft_tokens:
            steps = draft_tokens
    return speculation(steps, 1 if topk is None else topk, draft_tokens)


def settle_max_len(max_len: int | None, config: ModelConfig) -> int:
    """The context to serve: the model's own unless less was asked for."""
    if max_len is None:
        return config.max_position
    if max_len > config.max_position:
        raise ValueError(f"max_len {max_len} is beyond the model's context of {config.max_position} tokens")
    return max_len


def settle_engine(
    shape: Speculation,
    *,
    max_len: int,
    max_batch: int,
    kv_gib: float | None,
    entry_bytes: int,
    weights: int,
    device: torch.device,
    page_size: int = 16,
) -> EngineConfig:
    """Size the KV pools: as much as max_batch full contexts take, within the budget.

    entry_bytes: of one token in both pools. weights: bytes that are still to be loaded.
    """
    budget = (kv_gib if kv_gib is not None else _kv_gib(device, weights)) * GIB
    longest = max(2, max_len) + shape.num_tail_entries + 1 + page_size
    wanted = max(1, max_batch) * longest  # EngineConfig refuses smaller numbers in its own words
    num_entries = min(wanted, int(budget / entry_bytes))
    if num_entries < 2 * page_size:
        raise ValueError(f"{budget / GIB:.2f} GiB hold {num_entries} KV entries; raise kv_gib")
    return EngineConfig(
        speculation=shape,
        max_len=max_len,
        max_batch=max_batch,
        page_size=page_size,
        num_pages=num_entries // page_size + 1,
    )


def pool_bytes(config: ModelConfig, draft: ModelConfig | None, dtype: torch.dtype) -> int:
    """Bytes of one KV entry in the target's pool and the draft's."""
    return kv_entry_bytes(config, dtype) + (kv_entry_bytes(draft, dtype) if draft else 0)


def _kv_gib(device: torch.device, weights: int) -> float:
    if device.type == "cpu":
        return CPU_KV_GIB
    return max(0, torch.cuda.mem_get_info(device)[0] - weights) * CUDA_KV_SHARE / GIB
