"""GGUF files read as the Hugging Face checkpoints they were made from."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from transformers import AutoConfig, AutoModelForCausalLM

from slipstream.weights.gguf import GgufSource
from tests.unit.weights import tiny_gguf

ARCHS = ("llama", "qwen2", "qwen3")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("tied", [True, False])
def test_an_unquantised_file_gives_back_the_weights_it_was_made_from(tmp_path: Path, arch: str, tied: bool) -> None:
    weights = tiny_gguf.write(tmp_path / "m.gguf", arch=arch, tied=tied)
    source = GgufSource(tmp_path / "m.gguf")
    assert set(source.names()) == set(weights)
    for name, values in weights.items():
        assert source.shape(name) == values.shape
        assert torch.equal(source.read(name), torch.from_numpy(values)), name
    assert source.config()["tie_word_embeddings"] is tied


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_rows_come_back_as_the_gguf_package_expands_them(tmp_path: Path, kind: str) -> None:
    kind_ = GGMLQuantizationType[kind]
    weights = tiny_gguf.write(tmp_path / "m.gguf", kind=kind_)
    source = GgufSource(tmp_path / "m.gguf")
    for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight"):
        expected = dequantize(quantize(weights[name], kind_), kind_)
        read = source.read(name)
        assert read.dtype == torch.float32
        assert np.array_equal(read.numpy(), expected), name


@pytest.mark.parametrize("arch", ARCHS)
def test_transformers_reads_the_same_weights_from_the_file(tmp_path: Path, arch: str) -> None:
    pytest.importorskip("accelerate", reason="transformers loads GGUF files only with accelerate installed")
    tiny_gguf.write(tmp_path / "m.gguf", arch=arch, kind=GGMLQuantizationType.Q8_0, tied=False)
    source = GgufSource(tmp_path / "m.gguf")
    config = AutoConfig.from_pretrained(tmp_path, gguf_file="m.gguf")
    config.head_dim = tiny_gguf.HEAD_DIM  # which transformers overlooks in the file
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", config=config, dtype=torch.float32)
    for name, values in theirs.state_dict().items():
        assert torch.equal(source.read(name), values), name


@pytest.mark.parametrize("arch", ARCHS)
def test_the_config_says_what_transformers_reads_from_the_file(tmp_path: Path, arch: str) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", arch=arch)
    config = GgufSource(tmp_path / "m.gguf").config()
    theirs = AutoConfig.from_pretrained(tmp_path, gguf_file="m.gguf")
    assert config["architectures"] == [type(theirs).__name__.replace("Config", "ForCausalLM")]
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        assert config[key] == getattr(theirs, key), key
    for key in ("model_type", "num_key_value_heads", "max_position_embeddings", "bos_token_id", "eos_token_id"):
        assert config[key] == getattr(theirs, key), key
    assert (config["rms_norm_eps"], config["rope_theta"], config["head_dim"]) == (1e-5, 100000.0, tiny_gguf.HEAD_DIM)
    assert config["attention_bias"] is (arch == "qwen2")


def test_a_float32_tensor_is_a_view_of_the_file(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf")
    source = GgufSource(tmp_path / "m.gguf")
    first, second = source.read("model.norm.weight"), source.read("model.norm.weight")
    assert first.data_ptr() == second.data_ptr()


def test_a_sliding_window_makes_llama_mistral(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", extra={"llama.attention.sliding_window": 128})
    config = GgufSource(tmp_path / "m.gguf").config()
    assert (config["model_type"], config["architectures"]) == ("mistral", ["MistralForCausalLM"])
    assert config["sliding_window"] == 128


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 256,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
        ),
    ],
)
def test_rope_scaling_reads_in_hugging_faces_words(tmp_path: Path, extra: dict, expected: dict | None) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", arch="qwen2", extra={f"qwen2.{key}": value for key, value in extra.items()})
    assert GgufSource(tmp_path / "m.gguf").config()["rope_scaling"] == expected


def test_llama_3s_scaling_is_recovered_from_its_frequency_factors(tmp_path: Path) -> None:
    factors = _llama3_factors(theta=500000.0, factor=8.0)
    extra = {"llama.rope.freq_base": 500000.0}
    tiny_gguf.write(tmp_path / "m.gguf", extra=extra, tensors={"rope_freqs.weight": factors})
    source = GgufSource(tmp_path / "m.gguf")
    scaling = source.config()["rope_scaling"]
    assert scaling == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert not any("rope" in name for name in source.names())


def test_unexplained_frequency_factors_are_refused(tmp_path: Path) -> None:
    factors = np.linspace(1, 3, tiny_gguf.HEAD_DIM // 2, dtype=np.float32)
    tiny_gguf.write(tmp_path / "m.gguf", tensors={"rope_freqs.weight": factors})
    with pytest.raises(ValueError, match=r"rotary factors .* use the model's safetensors"):
        GgufSource(tmp_path / "m.gguf").config()


def _llama3_factors(*, theta: float, factor: float) -> np.ndarray:
    """Work the factors out wavelength by wavelength, as llama.cpp's converter does."""
    found = []
    for index in range(0, tiny_gguf.HEAD_DIM, 2):
        wavelength = 2 * np.pi * theta ** (index / tiny_gguf.HEAD_DIM)
        smooth = (8192 / wavelength - 1.0) / 3.0
        blended = 1 / ((1 - smooth) / factor + smooth)
        found.append(1.0 if wavelength < 2048 else factor if wavelength > 8192 else blended)
    return np.array(found, dtype=np.float32)


def test_an_end_of_turn_token_is_a_second_end(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", extra={"tokenizer.ggml.eot_token_id": 7})
    assert GgufSource(tmp_path / "m.gguf").config()["eos_token_id"] == [2, 7]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("llama.expert_count", 8, "mixture of experts"),
        ("llama.rope.dimension_count", 8, "rotates only part"),
        ("llama.attention.value_length", 8, "different widths"),
        ("llama.rope.scaling.type", "longrope", "linear, yarn and llama3"),
    ],
)
def test_what_no_model_here_does_is_refused(tmp_path: Path, key: str, value: object, words: str) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", extra={key: value})
    with pytest.raises(ValueError, match=words):
        GgufSource(tmp_path / "m.gguf").config()


def test_an_unknown_architecture_is_named_beside_the_known_ones(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", arch="gemma3")
    with pytest.raises(ValueError, match="'gemma3'; the ones read from GGUF are llama, qwen2, qwen3"):
        GgufSource(tmp_path / "m.gguf")


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", tensors={"blk.0.ffn_gate_exps.weight": np.ones((2, 32), np.float32)})
    with pytest.raises(ValueError, match=r"blk.0.ffn_gate_exps.weight, which has no place"):
        GgufSource(tmp_path / "m.gguf")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf")
    with pytest.raises(ValueError, match=r"no tensor lm_head.weight"):
        GgufSource(tmp_path / "m.gguf").read("lm_head.weight")
