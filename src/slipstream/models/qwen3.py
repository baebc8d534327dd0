"""Qwen3: an RMS norm on each query and key head."""

from slipstream.config.model import ModelConfig
from slipstream.models.decoder import Decoder
from slipstream.parallel.group import Group

ARCHITECTURE = "Qwen3ForCausalLM"


def build(config: ModelConfig, *, group: Group, max_position: int) -> Decoder:
    """An empty model of this architecture; weights are loaded afterwards."""
    return Decoder(config, group=group, max_position=max_position)
