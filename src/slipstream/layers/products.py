"""How a layer's products are done: by torch one after another, or fused by our kernels.

Layers say what is multiplied, normed and added; `Products` does it. Both ways round where torch would round.

Shape letters: T packed tokens, D hidden, I inputs, O outputs, V vocabulary of a shard, P partial sums of squares.
"""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.kernels.draws import Choice, Draws
from slipstream.layers.embedding import Rows, read
from slipstream.layers.linear import Linear, RowLinear
from slipstream.layers.norm import RMSNorm


class Stream(NamedTuple):
    """The residual stream."""

    x_TD: Tensor
    squares_TP: Tensor | None = None  # fp32 sums of squares of parts of each row; None where torch norms
    scaled_TD: Tensor | None = None  # the rows times the weight of the norm that follows


class Products(Protocol):
    """The arithmetic around attention."""

    @property
    def pdl(self) -> bool | None:
        """Whether our kernels start before the one in front has ended; None: there are none, torch does all."""
        ...

    def begin(self, rows: Rows, follows: RMSNorm) -> Stream:
        """A stream of these rows; follows: the norm that will read it."""
        ...

    def product(self, linear: Linear, x_TI: Tensor) -> Tensor:
        """linear(x) [T, O]."""
        ...

    def normed(self, norm: RMSNorm, linear: Linear, stream: Stream) -> Tensor:
        """linear(norm(x)) [T, O]."""
        ...

    def gated(self, norm: RMSNorm, linear: Linear, stream: Stream) -> Tensor:
        """silu(g) * u [T, O / 2] for linear(norm(x)) = (g, u)."""
        ...

    def added(self, stream: Stream, linear: RowLinear, x_TI: Tensor, follows: RMSNorm, *, keep: bool = True) -> Stream:
        """The stream + linear(x), summed over the layer's ranks; follows: the norm that will read it.

        keep: whether weights may be loaded, not only asked for, before x is there.
        """
        ...

    def norm(self, norm: RMSNorm, stream: Stream) -> Tensor:
        """norm(x) [T, D]."""
        ...

    def pair(self, norms: tuple[RMSNorm, RMSNorm], first: Rows, second_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Two norms side by side [T, 2 D], and the second alone [T, D]."""
        ...

    def scores(self, head: Linear, normed_TD: Tensor) -> Tensor:
        """The head's logits [T, V]."""
        ...

    def choose(
        self, head: Linear, normed_TD: Tensor, draws: Draws | None, names_V: Tensor | None = None
    ) -> Choice | None:
        """The best id of each row over this shard, or its name; None: ask for scores, and choose among them."""
        ...


class TorchProducts:
    """One operation of torch after another."""

    pdl: None = None

    def begin(self, rows: Rows, follows: RMSNorm) -> Stream:
        """A stream of these rows."""
        return Stream(read(rows))

    def product(self, linear: Linear, x_TI: Tensor) -> Tensor:
        """linear(x)."""
        return linear(x_TI)

    def normed(self, norm: RMSNorm, linear: Linear, stream: Stream) -> Tensor:
        """linear(norm(x))."""
        return linear(norm(stream.x_TD))

    def gated(self, norm: RMSNorm, linear: Linear, stream: Stream) -> Tensor:
        """silu(g) * u."""
        gate_TI, up_TI = linear(norm(stream.x_TD)).chunk(2, dim=-1)
        return F.silu(gate_TI) * up_TI

    def added(self, stream: Stream, linear: RowLinear, x_TI: Tensor, follows: RMSNorm, *, keep: bool = True) -> Stream:
        """x + linear(x)."""
        return Stream(stream.x_TD + linear(x_TI))

    def norm(self, norm: RMSNorm, stream: Stream) -> Tensor:
        """norm(x)."""
        return norm(stream.x_TD)

    def pair(self, norms: tuple[RMSNorm, RMSNorm], first: Rows, second_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Two norms side by side."""
        normed_TD = norms[1](second_TD)
        return torch.cat((norms[0](read(first)), normed_TD), dim=-1), normed_TD

    def scores(self, head: Linear, normed_TD: Tensor) -> Tensor:
        """head(x)."""
        return head(normed_TD)

    def choose(
        self, head: Linear, normed_TD: Tensor, draws: Draws | None, names_V: Tensor | None = None
    ) -> Choice | None:
        """Logits come first."""
        return None


TORCH = TorchProducts()
