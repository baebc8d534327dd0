"""The pre-norm decoder layer that targets and drafts share.

Shape letters: T packed tokens, D hidden.
"""

from torch import nn

from slipstream.attention.interface import Attend, RopeTable
from slipstream.config.model import ModelConfig
from slipstream.layers.attention import Attention
from slipstream.layers.mlp import GatedMLP
from slipstream.layers.norm import RMSNorm
from slipstream.layers.products import Products, Stream
from slipstream.parallel.group import Group


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, index: int, group: Group) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attention = Attention(
            index=index,
            input_size=config.hidden_size,
            output_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            group=group,
            qkv_bias=config.qkv_bias,
            output_bias=config.output_bias,
            norm_eps=config.rms_norm_eps if config.qk_norm else None,
            window=config.window(index),
        )
        self.mlp_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, group=group)

    def forward(self, stream: Stream, attend: Attend, rope: RopeTable, by: Products, follows: RMSNorm) -> Stream:
        """Map the residual stream [T, D] through one layer; follows: the norm that reads what it leaves."""
        attention, mlp = self.attention, self.mlp
        mixed_TC = attend(attention, by.normed(self.attention_norm, attention.qkv, stream), rope)
        stream = by.added(stream, attention.output, mixed_TC, self.mlp_norm, keep=not attend.is_long)
        return by.added(stream, mlp.down, by.gated(self.mlp_norm, mlp.gate_up, stream), follows)
