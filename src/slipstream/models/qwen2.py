"""Qwen2 and Qwen2.5: biases on the QKV projection."""

from slipstream.config.model import ModelConfig
from slipstream.models.decoder import Decoder
from slipstream.parallel.group import Group

ARCHITECTURE = "Qwen2ForCausalLM"


def build(config: ModelConfig, *, group: Group, max_position: int) -> Decoder:
    """An empty model of this architecture; weights are loaded afterwards."""
    return Decoder(config, group=group, max_position=max_position)
