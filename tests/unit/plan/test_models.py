"""Parameters counted from widths, beside published sizes; config.json of every kind."""

import pytest

from slipstream.plan.hardware import shipped
from slipstream.plan.models import find_model, from_config, from_sizes, named_model, with_bits

PUBLISHED = {  # 10^9 parameters: all, active (the embedding is not counted among the active)
    "llama-3.1-8b": (8.03, 7.5),
    "llama-3.1-70b": (70.6, 69.5),
    "qwen3-8b": (8.19, 7.6),
    "qwen3-32b": (32.8, 32.0),
    "qwen3-30b-a3b": (30.5, 3.0),
    "qwen3-235b-a22b": (235, 21.6),
    "deepseek-v3": (671, 36.6),
    "kimi-k2.5": (1026, 32.0),
    "gpt-oss-20b": (20.9, 3.6),
    "gpt-oss-120b": (116.8, 5.1),
    "smollm2-135m": (0.1345, 0.1345),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counted_parameters_are_the_published_ones(name):
    shape, (total, active) = named_model(name), PUBLISHED[name]
    assert shape.total / 1e9 == pytest.approx(total, rel=0.02)
    assert shape.active / 1e9 == pytest.approx(active, rel=0.03)


@pytest.mark.parametrize("name", list(shipped("models")))
def test_a_name_that_holds_sizes_is_counted_to_them(name):
    billions = [
        float(word[:-1]) for word in name.split("-") if word.endswith("b") and word[:-1].replace(".", "").isdigit()
    ]
    if billions:
        assert named_model(name).total / 1e9 == pytest.approx(billions[0], rel=0.1)


def test_kimi_reads_what_the_facts_count_at_eight_ranks():
    shape = named_model("kimi-k2.5")
    assert shape.expert / 1e6 == pytest.approx(44.04, abs=0.01)
    assert shape.routed * 4.5 / 8 / 1e9 == pytest.approx(570, rel=0.01)
    assert shape.weight_bytes / 1e9 == pytest.approx(594, rel=0.01)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("moonshotai/Kimi-K2.5-MXFP4", "kimi-k2"),
        ("Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen3.8-27B", None),  # not Qwen3-8B
        ("Kimi-K3", None),
    ],
)
def test_a_published_name_leads_to_its_shape_or_to_none(text, name):
    found = find_model(text)
    assert (found and found.name) == name


def test_an_unknown_model_lists_the_nearest():
    with pytest.raises(ValueError, match=r"no model is called qwen3-9b; the nearest are .*qwen3-8b"):
        named_model("qwen3-9b")


def test_a_dense_config_gives_the_table_s_shape():
    raw = {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 128256,
    }  # fmt: skip
    assert from_config("x", raw).total == named_model("llama-3.1-8b").total


def test_a_config_of_latent_attention_and_experts_gives_the_table_s_shape():
    raw = {
        "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
        "intermediate_size": 18432, "vocab_size": 129280, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3, "kv_lora_rank": 512,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "quantization_config": {"quant_method": "fp8"},
    }  # fmt: skip
    found, known = from_config("x", raw), named_model("deepseek-v3")
    assert (found.total, found.active, found.kv_per_token) == (known.total, known.active, known.kv_per_token)
    assert found.bits == known.bits == 8


def test_a_multimodal_config_is_read_where_its_language_model_is():
    inner = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 10,
        "intermediate_size": 9,
    }
    assert from_config("x", {"text_config": inner}).layers == 2


def test_a_config_without_widths_names_them():
    with pytest.raises(ValueError, match="lacks num_hidden_layers"):
        from_config("x", {"hidden_size": 1, "num_attention_heads": 1, "vocab_size": 1})


@pytest.mark.parametrize(("total", "active"), [(8, 8), (27, 27), (70, 70), (30, 3), (109, 17), (671, 37), (2800, 104)])
def test_a_likely_shape_has_the_sizes_it_was_made_of(total, active):
    found = from_sizes("x", total, active)
    assert found.approximate
    assert found.total / 1e9 == pytest.approx(total, rel=0.15)
    assert found.active / 1e9 == pytest.approx(active, rel=0.35)


def test_few_bits_of_a_mixture_are_its_routed_experts_only():
    mixture, dense = with_bits(named_model("qwen3-30b-a3b"), 4.5), with_bits(named_model("llama-3.1-8b"), 4.5)
    assert (mixture.bits, mixture.routed_bits) == (16, 4.5)
    assert dense.bits == 4.5
