"""Read a draft's config.json (native or speculators) into a DraftConfig, and write the native one back."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from slipstream.config.draft import (
    AS_DECLARED,
    CaptureConvention,
    DraftConfig,
    DraftWiring,
    default_captures,
    settle_captures,
)
from slipstream.config.hf import model_config
from slipstream.config.model import ModelConfig, RopeKind

LAYER_ID_KEYS = ("eagle_aux_hidden_state_layer_ids", "layer_ids")
CONVENTION_KEY = "capture_convention"
UNSUPPORTED = {
    "mask_hidden": "parallel drafting (P-EAGLE)",
    "kv_lora_rank": "a latent-attention (MLA) draft",
    "num_experts": "a mixture-of-experts draft",
}


def draft_config(
    raw: Mapping[str, Any], *, target: ModelConfig, convention: CaptureConvention, wiring: DraftWiring = AS_DECLARED
) -> DraftConfig:
    """Settle a draft's shape, honouring every variant flag or refusing it.

    wiring: what is known better than the config.

    Raises:
        ValueError: an unsupported variant, or a config that does not belong to this target.
    """
    speculators = "transformer_layer_config" in raw
    body_raw = {**raw["transformer_layer_config"], "architectures": ["draft"]} if speculators else dict(raw)
    eagle = raw.get("eagle_config") or {}
    _refuse(raw, body_raw, eagle)
    body = _body(raw, body_raw, target)
    ids = layer_ids(raw)
    if convention is CaptureConvention.AUTO and eagle.get(CONVENTION_KEY):
        convention = CaptureConvention(eagle[CONVENTION_KEY])
    if wiring.layers is not None:
        captures = checked_layers(wiring.layers, target.num_layers)
    else:
        captures = settle_captures(ids, convention, num_layers=target.num_layers, speculators=speculators)
        _check_captures(raw, captures, ids)
    config = DraftConfig(
        body=body,
        target_hidden_size=int(raw.get("target_hidden_size") or target.hidden_size),
        draft_vocab_size=int(raw.get("draft_vocab_size") or body.vocab_size),
        captures=captures,
        norm_before_residual=_either(
            wiring.norm_before_residual, _flag(raw, eagle, "norm_before_residual", default=speculators)
        ),
        fc_norm=bool(_flag(raw, eagle, "fc_norm") or _flag(raw, eagle, "use_aux_norm")),
        norm_before_fc=bool(_flag(raw, eagle, "norm_before_fc")),
        norm_output=_either(wiring.norm_output, _flag(raw, eagle, "norm_output")),
        fc_bias=bool(raw.get("bias", False)),
        tie_head=bool(raw.get("tie_word_embeddings", False)),
    )
    _check_target(config, target)
    return config


def checked_layers(layers: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """The layers of a wiring, ascending.

    Raises:
        ValueError: they repeat, or lie outside the target.
    """
    captures = tuple(sorted(set(layers)))
    if not layers or len(captures) < len(layers) or captures[0] < 0 or captures[-1] > num_layers:
        raise ValueError(
            f"--draft-layers {','.join(map(str, layers))} must name different layers within 0..{num_layers}, the"
            " number of target layers after which each state is taken"
        )
    return captures


def native_config(config: DraftConfig, *, target: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The native config.json of a draft; default capture layers are left out, so that every engine agrees on them."""
    body, rope = config.body, config.body.rope
    raw: dict[str, Any] = {
        "architectures": ["Eagle3Qwen3ForCausalLM" if body.qk_norm else "LlamaForCausalLMEagle3"],
        "model_type": _model_type(body),
        "hidden_size": body.hidden_size,
        "intermediate_size": body.intermediate_size,
        "num_attention_heads": body.num_heads,
        "num_key_value_heads": body.num_kv_heads,
        "head_dim": body.head_dim,
        "num_hidden_layers": body.num_layers,
        "hidden_act": "silu",
        "rms_norm_eps": body.rms_norm_eps,
        "rope_theta": rope.theta,
        "rope_scaling": None if rope.kind is RopeKind.DEFAULT else _rope_scaling(body),
        "max_position_embeddings": body.max_position,
        "vocab_size": body.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "tie_word_embeddings": False,
        "bos_token_id": target.bos_id,
        "eos_token_id": target.eos_ids[0] if len(target.eos_ids) == 1 else list(target.eos_ids),
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    flags = ("norm_before_residual", "fc_norm", "norm_before_fc", "norm_output")
    raw |= {flag: True for flag in flags if getattr(config, flag)}
    if config.fc_bias:
        raw["bias"] = True
    if body.qkv_bias:
        raw["attention_bias"] = True
    if config.target_hidden_size != body.hidden_size:
        raw["target_hidden_size"] = config.target_hidden_size
    return raw | _capture_keys(config, target)


def _model_type(body: ModelConfig) -> str:
    """The type whose own rules read this body back: Qwen3 norms its heads, Qwen2 has biases on QKV alone."""
    if body.qk_norm:
        return "qwen3"
    return "qwen2" if body.qkv_bias and not body.output_bias else "llama"


def _capture_keys(config: DraftConfig, target: ModelConfig) -> dict[str, Any]:
    """Explicit layer ids as input ids, which vLLM reads as they are; our own key settles the convention for us."""
    try:
        if config.captures == default_captures(target.num_layers):
            return {}
    except ValueError:
        pass
    ids, key = list(config.captures), LAYER_ID_KEYS[0]
    return {key: ids, "eagle_config": {key: ids, CONVENTION_KEY: CaptureConvention.INPUT.value}}


def _rope_scaling(body: ModelConfig) -> dict[str, Any]:
    rope = body.rope
    values: dict[str, Any] = {"rope_type": rope.kind.value, "factor": rope.factor}
    if rope.original_max_position:
        values["original_max_position_embeddings"] = rope.original_max_position
    if rope.kind is RopeKind.LLAMA3:
        values |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind is RopeKind.YARN:
        values |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
        scales = ("attention_factor", "mscale", "mscale_all_dim")
        values |= {name: getattr(rope, name) for name in scales if getattr(rope, name) is not None}
    return values


def _body(raw: Mapping[str, Any], body_raw: dict[str, Any], target: ModelConfig) -> ModelConfig:
    body_raw.setdefault("vocab_size", target.vocab_size)
    body_raw.setdefault("num_hidden_layers", 1)
    body_raw["sliding_window"] = None  # copied from the target; a draft that means it names it in layer_types
    body = model_config(body_raw)
    if body.vocab_size != target.vocab_size:
        raise ValueError(
            f"the draft was made for a vocabulary of {body.vocab_size} tokens but the target has {target.vocab_size};"
            " choose a draft trained for this target"
        )
    return replace(body, architecture=str((raw.get("architectures") or ["draft"])[0]))


def layer_ids(raw: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Explicit capture-layer ids, as config.json writes them."""
    for place in (raw, raw.get("eagle_config") or {}):
        for key in LAYER_ID_KEYS:
            if place.get(key):
                return tuple(int(layer) for layer in place[key])
    return None


def _flag(raw: Mapping[str, Any], eagle: Mapping[str, Any], key: str, *, default: bool = False) -> object:
    return raw[key] if raw.get(key) is not None else eagle.get(key, default)


def _either(known: bool | None, declared: object) -> bool:
    return bool(declared) if known is None else known


def _refuse(raw: Mapping[str, Any], body_raw: Mapping[str, Any], eagle: Mapping[str, Any]) -> None:
    for key, what in UNSUPPORTED.items():
        if raw.get(key) or body_raw.get(key):
            raise ValueError(f"the draft's config has {key!r}: {what} is not supported yet; use a plain EAGLE-3 draft")
    if "sliding_attention" in (body_raw.get("layer_types") or ()):
        raise ValueError("the draft's layer_types ask for sliding_attention, which is not supported in a draft yet")
    if _flag(raw, eagle, "use_aux_hidden_state", default=True) is False:
        raise ValueError(
            "use_aux_hidden_state is false: this is an EAGLE-1 draft, and only EAGLE-3 drafts are supported"
        )
    if _flag(raw, eagle, "norm_before_fc") and (_flag(raw, eagle, "fc_norm") or _flag(raw, eagle, "use_aux_norm")):
        raise ValueError("the draft's config sets both norm_before_fc and fc_norm, which exclude each other")


def _check_captures(raw: Mapping[str, Any], captures: tuple[int, ...], ids: tuple[int, ...] | None) -> None:
    count = raw.get("num_aux_hidden_states")
    if count and int(count) != len(captures):
        source = "the default capture layers are 3" if ids is None else f"it names {len(captures)} capture layers"
        raise ValueError(f"the draft's config asks for {count} hidden states but {source}; name the layer ids")


def _check_target(config: DraftConfig, target: ModelConfig) -> None:
    if config.target_hidden_size != target.hidden_size:
        raise ValueError(
            f"the draft was made for a target of hidden size {config.target_hidden_size} but this target's is"
            f" {target.hidden_size}; choose a draft trained for this target"
        )
