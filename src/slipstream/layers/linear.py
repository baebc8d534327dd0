"""Linear layers; on a CPU their weights are packed once for oneDNN.

Shape letters: T packed tokens, I inputs, O outputs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.parallel.group import Group

# oneDNN picks another summation order for a lone row; from this many rows on a row's result does not depend on
# how many rows it came with (measured 2..256), and four rows cost no more than one.
MIN_PACKED_ROWS = 4


class Linear(nn.Module):
    """y = x W^T + b."""

    def __init__(self, num_in: int, num_out: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_out, num_in))
        self.bias = nn.Parameter(torch.empty(num_out)) if bias else None
        self.packed: Tensor | None = None
        self.shape = (num_out, num_in)  # of the weight, packed or not

    def pack(self) -> None:
        """Reorder the weight for oneDNN (CPU, fp32); rows then give the same bits whatever their number."""
        if not can_pack(self.weight):
            return
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), MIN_PACKED_ROWS * 2)
        self.weight = nn.Parameter(torch.empty(0), requires_grad=False)

    def forward(self, x_TI: Tensor) -> Tensor:
        """Map [T, I] to [T, O]."""
        return self.apply_weight(x_TI, self.bias)

    def apply_weight(self, x_TI: Tensor, bias: Tensor | None) -> Tensor:
        """Map [T, I] to [T, O] with this bias or none."""
        if self.packed is None:
            return F.linear(x_TI, self.weight, bias)
        num_rows = x_TI.shape[0]
        if num_rows >= MIN_PACKED_ROWS:
            return packed_linear(x_TI, self.packed, bias)
        padded = F.pad(x_TI, (0, 0, 0, MIN_PACKED_ROWS - num_rows))
        return packed_linear(padded, self.packed, bias)[:num_rows]


class RowLinear(Linear):
    """A linear layer cut along its inputs: every rank holds a partial sum."""

    def __init__(self, num_in: int, num_out: int, *, group: Group, name: str, bias: bool = False) -> None:
        """num_in: this rank's inputs. name: of the sum, in a list of a cycle's collectives."""
        super().__init__(num_in, num_out, bias=bias)
        self.group, self.name = group, name

    def forward(self, x_TI: Tensor) -> Tensor:
        """Map [T, I / size] to [T, O], summed over the group; the bias, which every rank holds, is added once."""
        if self.group.size == 1:
            return super().forward(x_TI)
        total_TO = self.group.all_reduce(self.apply_weight(x_TI, None), self.name)
        return total_TO if self.bias is None else total_TO + self.bias


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN can hold this weight packed."""
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() > 0
    return on_cpu and torch.backends.mkldnn.is_available()


def packed_linear(x_TI: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply by a packed weight."""
    return torch.ops.mkldnn._linear_pointwise(x_TI, packed, bias, "none", [], "")


def packed_bytes(packed: Tensor) -> int:
    """Bytes of a packed weight, which is opaque to torch: padding of its blocks aside."""
    return packed.numel() * packed.element_size()


def pack_linears(module: nn.Module) -> None:
    """Pack every linear layer below a module for serving on a CPU."""
    for layer in module.modules():
        if isinstance(layer, Linear):
            layer.pack()
