"""The Attend protocol: attention is an argument of a model, never a global.

Shape letters: T packed tokens, H heads, G kv heads, K head width, C = (H + 2 G) K merged projection.
"""

from typing import Protocol

from torch import Tensor

from slipstream.kernels.reference import rotate_halves


class Normalise(Protocol):
    """A norm over the last dimension."""

    @property
    def weight(self) -> Tensor:
        """Its factors."""
        ...

    @property
    def eps(self) -> float:
        """Added to the mean square."""
        ...

    def __call__(self, x: Tensor, /) -> Tensor:
        """Normalise x."""
        ...


class AttentionShape(Protocol):
    """What a backend must know of an attention layer."""

    index: int  # which layer of the KV pool
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None  # keys a query sees, itself included; None = all

    @property
    def query_norm(self) -> Normalise | None:
        """A norm over each query head, before RoPE."""
        ...

    @property
    def key_norm(self) -> Normalise | None:
        """A norm over each key head, before RoPE."""
        ...


class RopeTable(Protocol):
    """Cosines and sines by position."""

    def at(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """[T, 1, K/2] cosines and sines."""
        ...

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        """The whole tables, fp32 [P, K/2] each."""
        ...


class Attend(Protocol):
    """Everything between the merged projection and the output projection: q/k norm, RoPE, KV store, attention."""

    __slots__ = ()

    @property
    def is_long(self) -> bool:
        """Whether it reads so many keys that the product behind it had better not load weights meanwhile."""
        return False

    def __call__(self, layer: AttentionShape, qkv_TC: Tensor, rope: RopeTable) -> Tensor:
        """Return [T, H * K]."""
        ...


class RowsAttend(Attend, Protocol):
    """A backend that knows where its rows stand."""

    __slots__ = ()

    @property
    def positions_T(self) -> Tensor:
        """Of each row, [T]."""
        ...


def heads(layer: AttentionShape, qkv_TC: Tensor, cos_sin: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Split a merged projection into rotated queries [T, H, K], rotated keys [T, G, K] and values [T, G, K]."""
    num_rows, width = qkv_TC.shape[0], layer.head_dim
    num_rotated = layer.num_heads + layer.num_kv_heads
    rows = qkv_TC.view(num_rows, num_rotated + layer.num_kv_heads, width)
    rotated, values_TGK = rows[:, :num_rotated], rows[:, num_rotated:]
    if layer.query_norm is None or layer.key_norm is None:
        both = rotate_halves(rotated, *cos_sin)
        return both[:, : layer.num_heads], both[:, layer.num_heads :], values_TGK
    queries = layer.query_norm(rotated[:, : layer.num_heads])
    keys = layer.key_norm(rotated[:, layer.num_heads :])
    return rotate_halves(queries, *cos_sin), rotate_halves(keys, *cos_sin), values_TGK
