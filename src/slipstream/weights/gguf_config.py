"""Write the config.json that a GGUF file's metadata amounts to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.weights.gguf_header import GgufHeader
from slipstream.weights.gguf_names import ROPE_FACTORS

ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
GGUF_ARCHS = ("llama", "qwen2", "qwen3")  # Mistral calls itself llama
DEFAULT_ROPE_THETA = 10000.0
# Every Llama 3.x that scales its rotary embedding does it between these; the file keeps only the outcome.
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL_LEN = 1.0, 4.0, 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """A header's metadata below its architecture's prefix."""

    header: GgufHeader
    arch: str

    def get(self, key: str, default: Any = None) -> Any:
        """Give a value, or a default where the file is silent."""
        return _shortest(self.header.metadata.get(f"{self.arch}.{key}", default))

    def require(self, key: str) -> Any:
        """Give a value that the file must have, the same for every layer."""
        value = self.header.require(f"{self.arch}.{key}")
        if not isinstance(value, list):
            return _shortest(value)
        if len(set(value)) != 1:
            raise ValueError(f"{self.header.path} has {self.arch}.{key} differ by layer, which no model here does")
        return value[0]


def architecture(header: GgufHeader) -> str:
    """Name the file's architecture, refusing those with no model here."""
    arch = header.require("general.architecture")
    if arch not in GGUF_ARCHS:
        raise ValueError(
            f"{header.path} holds the architecture {arch!r}; the ones read from GGUF are {', '.join(GGUF_ARCHS)}"
        )
    return arch


def hf_config(header: GgufHeader) -> dict[str, Any]:
    """Give the fields of a Hugging Face config.json."""
    arch = architecture(header)
    keys = _Keys(header=header, arch=arch)
    if keys.get("expert_count", 0):
        raise ValueError(f"{header.path} is a mixture of experts, which is not read from GGUF; use its safetensors")
    window = keys.get("attention.sliding_window", 0)
    model_type = "mistral" if arch == "llama" and window else arch
    return {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        **_shape(keys),
        **_rotary(keys),
        **_window(window, model_type),
        **token_ids(header),
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }


def _shape(keys: _Keys) -> dict[str, Any]:
    """Give the sizes of the network."""
    if "token_embd.weight" not in keys.header.tensors:
        raise ValueError(f"{keys.header.path} has no token_embd.weight; it is not a whole model")
    num_heads = keys.require("attention.head_count")
    return {
        "hidden_size": keys.require("embedding_length"),
        "intermediate_size": keys.require("feed_forward_length"),
        "num_hidden_layers": keys.require("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": kv_heads(keys.header),
        "head_dim": _head_dim(keys),
        "hidden_act": "silu",
        "rms_norm_eps": keys.require("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": keys.require("context_length"),
        "vocab_size": keys.header.tensors["token_embd.weight"].shape[0],
    }


def query_heads(header: GgufHeader) -> int:
    """Count the query heads of a layer."""
    return _Keys(header=header, arch=architecture(header)).require("attention.head_count")


def kv_heads(header: GgufHeader) -> int:
    """Count the key heads of a layer; as many as query heads where the file is silent."""
    keys = _Keys(header=header, arch=architecture(header))
    if keys.get("attention.head_count_kv") is None:
        return query_heads(header)
    return keys.require("attention.head_count_kv")


def _head_dim(keys: _Keys) -> int:
    """Give the width of a head, which all of rotary must cover."""
    head_dim = keys.get("attention.key_length") or keys.require("embedding_length") // query_heads(keys.header)
    if keys.get("attention.value_length", head_dim) != head_dim:
        raise ValueError(f"{keys.header.path} has keys and values of different widths, which no model here does")
    if keys.get("rope.dimension_count", head_dim) != head_dim:
        raise ValueError(f"{keys.header.path} rotates only part of each head, which no model here does")
    return head_dim


def _rotary(keys: _Keys) -> dict[str, Any]:
    """Give the rotary embedding's base and scaling."""
    theta = float(keys.get("rope.freq_base", DEFAULT_ROPE_THETA))
    return {"rope_theta": theta, "rope_scaling": _rope_scaling(keys, theta)}


def _rope_scaling(keys: _Keys, theta: float) -> dict[str, Any] | None:
    """Give the scaling in Hugging Face's words, or refuse one they have no words for."""
    path = keys.header.path
    kind = keys.get("rope.scaling.type", "none")
    factor = keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 1.0))
    if ROPE_FACTORS in keys.header.tensors:
        return _llama3_scaling(keys.header, theta)
    if kind == "yarn":
        return _yarn_scaling(keys, factor)
    if kind not in ("none", "linear"):
        raise ValueError(f"{path} scales its rotary embedding by {kind!r}; the kinds read are linear, yarn and llama3")
    return {"rope_type": "linear", "factor": factor} if factor != 1.0 else None


def _yarn_scaling(keys: _Keys, factor: float) -> dict[str, Any]:
    """Give yarn's parameters."""
    if keys.get("rope.scaling.attn_factor", 1.0) != 1.0 or keys.get("rope.scaling.yarn_attn_factor", 1.0) != 1.0:
        raise ValueError(f"{keys.header.path} scales yarn's attention itself; use the model's safetensors")
    found = {
        "original_max_position_embeddings": keys.require("rope.scaling.original_context_length"),
        "beta_fast": keys.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": keys.get("rope.scaling.yarn_beta_slow"),
    }
    return {"rope_type": "yarn", "factor": factor, **{key: value for key, value in found.items() if value is not None}}


def _llama3_scaling(header: GgufHeader, theta: float) -> dict[str, Any] | None:
    """Recover the parameters from which the file's frequency factors were made, and check that they give them."""
    factors = header.array(ROPE_FACTORS)
    factor = _shortest(float(factors.max()))
    if factor == 1.0:
        return None
    expected = _llama3_factors(theta=theta, factor=factor, num=len(factors))
    if not np.allclose(factors, expected, rtol=1e-4):
        raise ValueError(
            f"{header.path} carries rotary factors that Llama 3's scaling by {factor} does not give; "
            "use the model's safetensors"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW,
        "high_freq_factor": LLAMA3_HIGH,
        "original_max_position_embeddings": LLAMA3_ORIGINAL_LEN,
    }


def _llama3_factors(*, theta: float, factor: float, num: int) -> NDArray[np.float64]:
    """Divide long wavelengths by the factor, short ones by 1, and blend between."""
    wavelengths = 2 * math.pi * theta ** (np.arange(num) / num)
    turns = LLAMA3_ORIGINAL_LEN / wavelengths
    share = np.clip((turns - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW), 0.0, 1.0)
    return 1.0 / (share + (1.0 - share) / factor)


def _window(window: int, model_type: str) -> dict[str, Any]:
    """Give the sliding window, on every layer, where there is one."""
    if not window:
        return {"sliding_window": None}
    if model_type == "mistral":
        return {"sliding_window": window}
    return {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}


def token_ids(header: GgufHeader) -> dict[str, Any]:
    """Give the ids that begin, end and pad a text."""
    ids = {key: header.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "eot", "padding")}
    ends = list(dict.fromkeys(ids[key] for key in ("eos", "eot") if ids[key] is not None))
    return {
        "bos_token_id": ids["bos"],
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": ids["padding"],
    }


def _shortest(value: Any) -> Any:
    """Read a float that was stored in 32 bits as the decimal its writer meant: 1e-05, not 9.99999975e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
