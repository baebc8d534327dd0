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
LLAMA_70B = replace(LLAMA_8B, hidden_size=8192, intermediate_size=28_672, num_layers=80, num_heads=64)
QWEN3_8B = ModelConfig(
    architecture="Qwen3ForCausalLM",
    hidden_size=4096,
    intermediate_size=12_288,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=151_936,
    rms_norm_eps=1e-6,
    rope=RopeConfig(theta=1_000_000.0),
    max_position=40_960,
    qk_norm=True,
)
SMOLLM2_135M = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49_152,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=100_000.0),
    max_position=8192,
    tie_embeddings=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullShape:
    """A target and the EAGLE-3 head beside it."""

    target: ModelConfig
    draft: DraftConfig


def _with_head(target: ModelConfig, *, draft_vocab_size: int, intermediate_size: int | None = None) -> FullShape:
    """One Llama layer of the target's widths over the default captures, as published heads have it.

    intermediate_size: of the head, where it is not the target's.
    """
    body = replace(target, architecture="LlamaForCausalLM", num_layers=1, qk_norm=False, tie_embeddings=False)
    draft = DraftConfig(
        body=replace(body, intermediate_size=intermediate_size or target.intermediate_size),
        target_hidden_size=target.hidden_size,
        draft_vocab_size=draft_vocab_size,
        captures=default_captures(target.num_layers),
    )
    return FullShape(target=target, draft=draft)


FULL_SHAPES: Mapping[str, FullShape] = {
    "llama-3.1-8b": _with_head(LLAMA_8B, draft_vocab_size=32_000),
    "llama-3.1-70b": _with_head(LLAMA_70B, draft_vocab_size=32_000),
    "qwen3-8b": _with_head(QWEN3_8B, draft_vocab_size=32_000),
    "smollm2-135m": _with_head(SMOLLM2_135M, draft_vocab_size=13_312, intermediate_size=2560),  # as shipped in drafts/
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
