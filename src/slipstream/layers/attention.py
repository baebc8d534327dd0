"""Grouped-query attention as a layer: two projections around the backend that its caller hands in."""

from torch import nn

from slipstream.layers.linear import Linear, RowLinear
from slipstream.layers.norm import RMSNorm
from slipstream.parallel.cut import kv_heads, query_heads
from slipstream.parallel.group import Group


class Attention(nn.Module):
    """Merged QKV projection and output projection; a decoder layer calls the backend between them."""

    def __init__(
        self,
        *,
        index: int,
        input_size: int,
        output_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        group: Group,
        qkv_bias: bool = False,
        output_bias: bool = False,
        norm_eps: float | None = None,
        window: int | None = None,
    ) -> None:
        """num_heads, num_kv_heads: of the whole layer; norm_eps: give queries and keys an RMS norm a head (Qwen3)."""
        super().__init__()
        self.index, self.window, self.head_dim = index, window, head_dim
        self.num_heads = len(query_heads(num_heads, group.rank, group.size))  # this rank's own
        self.num_kv_heads = len(kv_heads(num_kv_heads, group.rank, group.size))
        num_columns = self.num_heads * head_dim
        self.qkv = Linear(input_size, num_columns + 2 * self.num_kv_heads * head_dim, bias=qkv_bias)
        self.output = RowLinear(num_columns, output_size, group=group, name="attention", bias=output_bias)
        self.query_norm = None if norm_eps is None else RMSNorm(head_dim, eps=norm_eps)
        self.key_norm = None if norm_eps is None else RMSNorm(head_dim, eps=norm_eps)
