"""Whole shapes of a target and its draft, to time cycles on random weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from slipstream.config.draft import DraftConfig, default_captures
from slipstream.config.model import ModelConfig, RopeConfig, RopeKind

TINY = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden_size=64,
    intermediate_size=96,
    num_layers=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=128,
    rms_norm_eps=1e-5,
    rope=RopeConfig(),
    max_position=2048,
)
LLAMA_8B = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128_256,
    rms_norm_eps=1e-5,
    rope=RopeConfig(kind=RopeKind.LLAMA3, theta=500_000.0, factor=8.0, original_max_position=8192),
    max_position=131_072,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullShape:
    """A target and the EAGLE-3 head beside it."""

    target: ModelConfig
    draft: DraftConfig


def _with_head(target: ModelConfig, *, draft_vocab_size: int) -> FullShape:
    """One layer of the target's widths over the default captures, as published heads have it."""
    draft = DraftConfig(
        body=replace(target, num_layers=1),
        target_hidden_size=target.hidden_size,
        draft_vocab_size=draft_vocab_size,
        captures=default_captures(target.num_layers),
    )
    return FullShape(target=target, draft=draft)


FULL_SHAPES: Mapping[str, FullShape] = {
    "llama-3.1-8b": _with_head(LLAMA_8B, draft_vocab_size=32_000),
    "tiny": _with_head(TINY, draft_vocab_size=96),
}


def full_shape(name: str) -> FullShape:
    """Look a shape up.

    Raises:
        ValueError: listing the names there are.
    """
    if name not in FULL_SHAPES:
        raise ValueError(f"no shape is called {name}; choose {', '.join(FULL_SHAPES)}, or pass --model and --draft")
    return FULL_SHAPES[name]
