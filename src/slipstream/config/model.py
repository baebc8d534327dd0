"""The shape of a target model, settled once from its checkpoint's config.json."""

from dataclasses import dataclass
from enum import Enum


class RopeKind(Enum):
    """How rotary frequencies are scaled beyond the trained context."""

    DEFAULT = "default"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    YARN = "yarn"
    LLAMA3 = "llama3"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding parameters, under one spelling."""

    kind: RopeKind = RopeKind.DEFAULT
    theta: float = 10000.0
    factor: float = 1.0
    original_max_position: int = 0  # context before scaling; 0 = the model's max_position
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn; None = 0.1 ln(factor) + 1
    mscale: float | None = None  # yarn, DeepSeek's spelling
    mscale_all_dim: float | None = None
    truncate: bool = True  # yarn: round the correction range to whole dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One decoder-only target; every width in elements."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position: int
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()  # per layer; () = none anywhere
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer in tokens, None for full attention."""
        return self.windows[layer] if self.windows else None
