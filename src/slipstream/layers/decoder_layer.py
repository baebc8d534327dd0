"""The pre-norm decoder layer that targets and drafts share.

Shape letters: T packed tokens, D hidden.
"""

from torch import Tensor, nn

from slipstream.attention.interface import Attend, RopeTable
from slipstream.config.model import ModelConfig
from slipstream.layers.attention import Attention
from slipstream.layers.mlp import GatedMLP
from slipstream.layers.norm import RMSNorm
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

    def forward(self, x_TD: Tensor, attend: Attend, rope: RopeTable) -> Tensor:
        """Map the residual stream [T, D] through one layer."""
        x_TD = x_TD + self.attention(self.attention_norm(x_TD), attend, rope)
        return x_TD + self.mlp(self.mlp_norm(x_TD))
