"""Random tiny checkpoints, written as the world writes them: config.json + safetensors through transformers."""

from pathlib import Path
from typing import Any

import torch

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_model(kind: str, *, rope: str = "default", seed: int = 0, **overrides: Any) -> Any:
    """A random transformers model of one of our architectures: llama, mistral, qwen2 or qwen3."""
    import transformers

    classes = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    config_class = getattr(transformers, f"{classes[kind]}Config")
    parameters = {**ROPES[rope], "rope_theta": 10000.0}
    values = {**SMALL, "rope_parameters": parameters, **overrides}
    if kind in ("qwen3", "mistral"):
        values.setdefault("head_dim", 16)
    torch.manual_seed(seed)
    config = config_class(**values)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{classes[kind]}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.normal_(0, 0.1)
    return model


def write_tiny(path: Path, kind: str = "llama", **kwargs: Any) -> Path:
    """Save a tiny model to a directory."""
    tiny_model(kind, **kwargs).save_pretrained(path)
    return path
