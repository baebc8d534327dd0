"""The folders of a shape's target and draft without weights, which `slipstream serve --dummy-weights` fills at random.

The tokenizer is made up: token i is the text of the number i. It turns as many ids into text as a real one would.
"""

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from slipstream.bench.shapes import FullShape
from slipstream.config.model import ModelConfig, RopeConfig, RopeKind
from slipstream.draft.settings import native_config

MODEL_TYPES = {"LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3"}
TEMPLATE = "{% for message in messages %} {{ message.content }}{% endfor %}"
SPACE = "\u0120"  # how byte-level tokenizers write a space


def write_shape(full: FullShape, folder: Path) -> tuple[Path, Path]:
    """Write both; the target's folder and the draft's."""
    target, draft = folder / "target", folder / "draft"
    target.mkdir(parents=True)
    draft.mkdir()
    _write(target / "config.json", target_config(full.target))
    _write(target / "tokenizer_config.json", {"chat_template": TEMPLATE})
    made_up_tokenizer(full.target.vocab_size).save(str(target / "tokenizer.json"))
    _write(draft / "config.json", native_config(full.draft, target=full.target, dtype=torch.bfloat16))
    return target, draft


def target_config(config: ModelConfig) -> dict[str, Any]:
    """The config.json that reads as this shape."""
    assert not any((config.qkv_bias, config.output_bias, config.windows)), "no shape has biases or windows"
    return {
        "architectures": [config.architecture],
        "model_type": MODEL_TYPES[config.architecture],
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": _rope(config.rope),
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tie_embeddings,
    }


def made_up_tokenizer(vocab_size: int) -> tokenizers.Tokenizer:
    """A word a number."""
    words = {f"{SPACE}{index}": index for index in range(vocab_size)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, unk_token=f"{SPACE}0"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _rope(rope: RopeConfig) -> dict[str, Any]:
    assert rope.kind in (RopeKind.DEFAULT, RopeKind.LLAMA3), "no shape has another"
    found: dict[str, Any] = {"rope_type": rope.kind.value, "rope_theta": rope.theta}
    if rope.kind is RopeKind.LLAMA3:
        found |= {"factor": rope.factor, "original_max_position_embeddings": rope.original_max_position}
        found |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    return found


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
