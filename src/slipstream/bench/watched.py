"""Products that tell when a certain layer begins and ends, for who measures or holds it up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from slipstream.kernels.draws import Choice, Draws
from slipstream.layers.embedding import Rows
from slipstream.layers.linear import Linear, RowLinear
from slipstream.layers.norm import RMSNorm
from slipstream.layers.products import Products, Stream

Told = Callable[[], None]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedProducts:
    """Others' products; who is told of a layer is found by the layer itself."""

    inner: Products
    before: Mapping[Linear, Told] = field(default_factory=dict)
    after: Mapping[Linear, Told] = field(default_factory=dict)

    @property
    def pdl(self) -> bool | None:
        """As the inner ones."""
        return self.inner.pdl

    def begin(self, rows: Rows, follows: RMSNorm) -> Stream:
        """Not watched."""
        return self.inner.begin(rows, follows)

    def normed(self, norm: RMSNorm, linear: Linear, stream: Stream) -> Tensor:
        """Not watched."""
        return self.inner.normed(norm, linear, stream)

    def gated(self, norm: RMSNorm, linear: Linear, stream: Stream) -> Tensor:
        """Not watched."""
        return self.inner.gated(norm, linear, stream)

    def added(self, stream: Stream, linear: RowLinear, x_TI: Tensor, follows: RMSNorm, *, keep: bool = True) -> Stream:
        """Not watched."""
        return self.inner.added(stream, linear, x_TI, follows, keep=keep)

    def norm(self, norm: RMSNorm, stream: Stream) -> Tensor:
        """Not watched."""
        return self.inner.norm(norm, stream)

    def pair(self, norms: tuple[RMSNorm, RMSNorm], first: Rows, second_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Not watched."""
        return self.inner.pair(norms, first, second_TD)

    def product(self, linear: Linear, x_TI: Tensor) -> Tensor:
        """Watched."""
        return self._watched(linear, lambda: self.inner.product(linear, x_TI))

    def scores(self, head: Linear, normed_TD: Tensor) -> Tensor:
        """Watched."""
        return self._watched(head, lambda: self.inner.scores(head, normed_TD))

    def choose(
        self, head: Linear, normed_TD: Tensor, draws: Draws | None, names_V: Tensor | None = None
    ) -> Choice | None:
        """Watched, where there is something to see."""
        if self.pdl is None:
            return None
        return self._watched(head, lambda: self.inner.choose(head, normed_TD, draws, names_V))

    def _watched(self, linear: Linear, work: Callable[[], Result]) -> Result:
        if (told := self.before.get(linear)) is not None:
            told()
        found = work()
        if (told := self.after.get(linear)) is not None:
            told()
        return found
