"""Read a Hugging Face config.json into a ModelConfig; both RoPE spellings, sliding windows, eos lists."""

from collections.abc import Mapping
from typing import Any

from slipstream.config.model import ModelConfig, RopeConfig, RopeKind

QKV_BIAS_BY_TYPE = {"qwen2": True}
QK_NORM_TYPES = ("qwen3",)
WINDOW_TYPES = ("mistral", "qwen2", "qwen3")

ROPE_NUMBERS = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "truncate": "truncate",
}


def rope_config(raw: Mapping[str, Any]) -> RopeConfig:
    """Read `rope_theta` + `rope_scaling` (transformers 4) or `rope_parameters` (transformers 5).

    Raises:
        ValueError: an unknown kind of scaling.
    """
    scaling: dict[str, Any] = dict(raw.get("rope_scaling") or {})
    scaling.update(raw.get("rope_parameters") or {})
    name = scaling.get("rope_type") or scaling.get("type") or "default"
    known = [kind.value for kind in RopeKind]
    if name not in known:
        raise ValueError(f"rope scaling {name!r} is not supported; the kinds are {', '.join(known)}")
    values = {ours: scaling[theirs] for theirs, ours in ROPE_NUMBERS.items() if scaling.get(theirs) is not None}
    theta = scaling.get("rope_theta", raw.get("rope_theta", 10000.0))
    original = scaling.get("original_max_position_embeddings") or raw.get("original_max_position_embeddings") or 0
    return RopeConfig(kind=RopeKind(name), theta=float(theta), original_max_position=int(original), **values)


def model_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Settle the target's shape from its config.json.

    Raises:
        ValueError: a key is missing, or the checkpoint uses something that is not supported.
    """
    model_type = str(raw.get("model_type", ""))
    _refuse_unsupported(raw)
    hidden, heads = int(_need(raw, "hidden_size")), int(_need(raw, "num_attention_heads"))
    bias = bool(raw.get("attention_bias", QKV_BIAS_BY_TYPE.get(model_type, False)))
    return ModelConfig(
        architecture=_architecture(raw),
        hidden_size=hidden,
        intermediate_size=int(_need(raw, "intermediate_size")),
        num_layers=int(_need(raw, "num_hidden_layers")),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        vocab_size=int(_need(raw, "vocab_size")),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=rope_config(raw),
        max_position=int(raw.get("max_position_embeddings", 2048)),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=bias,
        output_bias=bias and model_type != "qwen2",
        qk_norm=model_type in QK_NORM_TYPES,
        windows=_windows(raw, model_type),
        bos_id=raw.get("bos_token_id"),
        eos_ids=_ids(raw.get("eos_token_id")),
    )


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures") or []
    if not isinstance(names, list) or not names:
        raise ValueError("config.json names no architecture; is this a model directory?")
    return str(names[0])


def _need(raw: Mapping[str, Any], key: str) -> Any:
    if raw.get(key) is None:
        raise ValueError(f"config.json lacks {key!r}; is this a complete causal-LM checkpoint?")
    return raw[key]


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ValueError(f"activation {activation!r} is not supported; only silu is")
    if raw.get("mlp_bias"):
        raise ValueError("mlp_bias is not supported; no published model of these architectures uses it")
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise ValueError(f"{method} quantised checkpoints are not supported; use the bf16 checkpoint or a GGUF")


def _windows(raw: Mapping[str, Any], model_type: str) -> tuple[int | None, ...]:
    window, num_layers = raw.get("sliding_window"), int(_need(raw, "num_hidden_layers"))
    if not window or model_type not in WINDOW_TYPES:
        return ()
    if raw.get("layer_types"):
        return tuple(int(window) if kind == "sliding_attention" else None for kind in raw["layer_types"])
    if model_type == "mistral":
        return (int(window),) * num_layers
    if not raw.get("use_sliding_window", False):
        return ()
    first = int(raw.get("max_window_layers", num_layers))
    return tuple(int(window) if layer >= first else None for layer in range(num_layers))


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, list) else (int(str(value)),)
