"""The paged backend by our kernels, in static shapes: lengths, pages and paths live on the device.

A row's bits depend on its own keys alone, whatever other rows and requests it comes with, chain or tree.

Shape letters: S requests, R rows of each, T = S * R, E pages of each, P path length, H heads, K head width.
"""

from dataclasses import dataclass, field, replace

from torch import Tensor

from slipstream.attention.interface import Attend, AttentionShape, RopeTable
from slipstream.attention.pool import KVPool
from slipstream.kernels.keys import Keys
from slipstream.kernels.paged import has_many_parts, paged_attention
from slipstream.kernels.qkv import rotate_and_store


@dataclass(slots=True)
class KernelAttend(Attend):
    """Attend over a pool for one forward; which rows see what stands in `keys`."""

    pool: KVPool
    keys: Keys
    pdl: bool
    _windows: dict[int | None, Keys] = field(default_factory=dict)

    @property
    def is_long(self) -> bool:
        """Its parts are added by another kernel."""
        return has_many_parts(self.keys)

    @property
    def positions_T(self) -> Tensor:
        """For the noise of draws."""
        return (self.keys.newest - self.keys.first).flatten()

    def __call__(self, layer: AttentionShape, qkv_TC: Tensor, rope: RopeTable) -> Tensor:
        """Store the rows' entries, then attend: [T, H * K]."""
        pool, keys = (self.pool.keys[layer.index], self.pool.values[layer.index]), self._keys(layer.window)
        arrivals = self.pool.arrivals
        if layer.query_norm is None or layer.key_norm is None:
            out = paged_attention(qkv_TC, *pool, keys, tables_PF=rope.tables, arrivals=arrivals, pdl=self.pdl)
            return out.view(qkv_TC.shape[0], -1)
        queries = turned(self.pool, keys, layer, qkv_TC, rope, pdl=self.pdl)
        return paged_attention(queries, *pool, keys, arrivals=arrivals, pdl=self.pdl).view(qkv_TC.shape[0], -1)

    def _keys(self, window: int | None) -> Keys:
        if window not in self._windows:
            self._windows[window] = self.keys if window is None else replace(self.keys, window=window)
        return self._windows[window]


def turned(pool: KVPool, keys: Keys, layer: AttentionShape, qkv_TC: Tensor, rope: RopeTable, *, pdl: bool) -> Tensor:
    """Queries [T, H, K] of a merged projection, normed where the layer says so and turned; entries are stored."""
    entries, norms, eps = (pool.keys[layer.index], pool.values[layer.index]), None, 0.0
    if layer.query_norm is not None and layer.key_norm is not None:
        norms, eps = (layer.query_norm.weight, layer.key_norm.weight), layer.query_norm.eps
    return rotate_and_store(
        qkv_TC, keys, rope.tables, entries, num_heads=layer.num_heads, norms_K=norms, eps=eps, pdl=pdl
    )
