"""Every variant flag of a draft's config is honoured or refused, and explicit layer ids have one meaning."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from slipstream.config.draft import CaptureConvention, default_captures, settle_captures
from slipstream.config.model import RopeKind
from slipstream.draft.settings import draft_config, native_config
from tests.tiny_engine import TINY

TARGET = replace(TINY, num_layers=80, vocab_size=1000, hidden_size=64)
AUTO = CaptureConvention.AUTO


def native(**more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 1000,
        "draft_vocab_size": 400,
        "rope_theta": 5e5,
        **more,
    }


def read(raw: dict[str, Any], convention: CaptureConvention = AUTO) -> Any:
    return draft_config(raw, target=TARGET, convention=convention)


def test_a_native_config_without_ids_takes_the_default_captures() -> None:
    config = read(native())
    assert config.captures == (2, 40, 77)
    assert config.pruned
    assert not config.norm_before_residual


def test_output_ids_and_input_ids_of_the_same_layers_meet() -> None:
    """N = 80: output-of [1, 39, 76] are input-to [2, 40, 77]."""
    as_output = read(native(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 39, 76]}))
    as_input = read(native(eagle_aux_hidden_state_layer_ids=[2, 40, 77]))
    assert as_output.captures == as_input.captures == (2, 40, 77)


def test_an_explicit_convention_overrides_the_rule() -> None:
    raw = native(eagle_aux_hidden_state_layer_ids=[1, 39, 76])
    assert read(raw, CaptureConvention.INPUT).captures == (1, 39, 76)
    assert read(raw, CaptureConvention.OUTPUT).captures == (2, 40, 77)


def test_the_state_after_the_last_layer_can_be_captured() -> None:
    assert settle_captures((2, 40, 80), CaptureConvention.INPUT, num_layers=80) == (2, 40, 80)


@pytest.mark.parametrize("ids", [(2, 2, 5), (5, 2), (-1, 3), (3, 81)])
def test_ids_that_repeat_or_lie_outside_are_refused(ids: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="--capture-convention"):
        settle_captures(ids, CaptureConvention.INPUT, num_layers=80)


@pytest.mark.parametrize("layers", [3, 4, 5, 6])
def test_default_captures_of_a_short_target_are_refused(layers: int) -> None:
    with pytest.raises(ValueError, match="too short for the default capture layers"):
        default_captures(layers)


def test_a_speculators_config_reads_its_inner_config_and_norms_before_the_residual() -> None:
    raw = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": native(architectures=None, draft_vocab_size=None),
        "draft_vocab_size": 400,
        "eagle_aux_hidden_state_layer_ids": [1, 40, 77],
    }
    config = read(raw)
    assert config.norm_before_residual
    assert config.captures == (1, 40, 77)  # speculators' ids are input ids, whatever the first is
    assert config.draft_vocab_size == 400


def test_both_rope_spellings_mean_the_same() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = read(native(rope_scaling={"type": "llama3", **scaling}))
    new = read(native(rope_theta=None, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **scaling}))
    assert old.body.rope == new.body.rope
    assert old.body.rope.kind is RopeKind.LLAMA3


@pytest.mark.parametrize("flag", ["fc_norm", "norm_before_fc", "norm_output", "norm_before_residual"])
def test_flags_are_read_from_the_top_or_from_eagle_config(flag: str) -> None:
    assert getattr(read(native(**{flag: True})), flag)
    assert getattr(read(native(eagle_config={flag: True})), flag)
    assert not getattr(read(native()), flag)


REFUSED = [
    ({"vocab_size": 999}, "vocabulary of 999"),
    ({"target_hidden_size": 128}, "hidden size 128"),
    ({"kv_lora_rank": 512}, "latent-attention"),
    ({"mask_hidden": True}, "P-EAGLE"),
    ({"eagle_config": {"use_aux_hidden_state": False}}, "EAGLE-1"),
    ({"fc_norm": True, "norm_before_fc": True}, "exclude each other"),
    ({"num_aux_hidden_states": 4}, "asks for 4 hidden states"),
    ({"hidden_act": "gelu"}, "gelu"),
    ({"layer_types": ["sliding_attention"], "sliding_window": 64}, "sliding_attention"),
    ({"rope_scaling": {"type": "longrope"}}, "longrope"),
]


@pytest.mark.parametrize(("more", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_is_not_supported_is_refused_with_the_reason(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(native(**more))


VARIANTS = [
    {},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_fc": True},
    {"norm_before_residual": True, "attention_bias": True, "bias": True},
    {"eagle_aux_hidden_state_layer_ids": [4, 20]},
    {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 30], "capture_convention": "input"}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "truncate": False}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5}},
    {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"},
    {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": True},
    {"model_type": "qwen2"},
]


@pytest.mark.parametrize("more", VARIANTS, ids=str)
def test_a_config_survives_being_written_and_read(more: dict[str, Any]) -> None:
    config = read(native(**more))
    written = native_config(config, target=TARGET, dtype=torch.bfloat16)
    assert read(written) == config
    assert written["tie_word_embeddings"] is False
    assert ("eagle_aux_hidden_state_layer_ids" in written) == (config.captures != (2, 40, 77))
