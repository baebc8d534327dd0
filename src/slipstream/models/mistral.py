"""Mistral: Llama's layout with a sliding window."""

from slipstream.config.model import ModelConfig
from slipstream.models.decoder import Decoder
from slipstream.parallel.group import Group

ARCHITECTURE = "MistralForCausalLM"


def build(config: ModelConfig, *, group: Group, max_position: int) -> Decoder:
    """An empty model of this architecture; weights are loaded afterwards."""
    return Decoder(config, group=group, max_position=max_position)
