"""The gated MLP of Llama-like models."""

from torch import nn

from slipstream.layers.linear import Linear, RowLinear
from slipstream.parallel.cut import span_of
from slipstream.parallel.group import Group


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up in one matrix."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, group: Group) -> None:
        super().__init__()
        own_size = len(span_of(intermediate_size, group.rank, group.size))
        self.gate_up = Linear(hidden_size, 2 * own_size)
        self.down = RowLinear(own_size, hidden_size, group=group, name="mlp")
