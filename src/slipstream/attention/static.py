"""The paged backend in static shapes, as a CUDA graph needs them: lengths live on the device, in tensors.

By our kernels where the pool says so; else by torch, where every request reads as many entries as its page table has,
gathered from the pool, and what it does not see is masked.

Shape letters: S requests, R rows of each, T = S * R, L keys of each, H heads, G kv heads, K head width.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from slipstream.attention.interface import Attend, AttentionShape, RopeTable, RowsAttend, heads
from slipstream.attention.pool import KVPool
from slipstream.kernels.keys import Keys
from slipstream.kernels.reference import attend_gathered

SCRATCH_PAGE = 0  # written by rows without an address; nobody reads it
SCRATCH_SLOT = 0  # of that page


@dataclass
class StaticAttend(Attend):
    """Attend over a pool for one forward."""

    pool: KVPool
    keys: Keys
    _cos_sin: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _masks: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)

    @property
    def positions_T(self) -> Tensor:
        """For RoPE, and for the noise of draws."""
        return (self.keys.newest - self.keys.first).clamp(min=0).flatten()

    @cached_property
    def _writes_T(self) -> Tensor:
        addresses_SR = self.keys.newest if self.keys.writes is None else self.keys.writes
        return self.keys.slots_at(addresses_SR).flatten()

    @cached_property
    def _slots_SL(self) -> Tensor:
        places = torch.arange(self.keys.page, device=self.keys.pages.device)
        return (self.keys.pages.long()[..., None] * self.keys.page + places).flatten(1)

    def __call__(self, layer: AttentionShape, qkv_TC: Tensor, rope: RopeTable) -> Tensor:
        """Store the rows' entries, then attend: [T, H * K]."""
        if id(rope) not in self._cos_sin:
            self._cos_sin[id(rope)] = rope.at(self.positions_T)
        q_THK, k_TGK, v_TGK = heads(layer, qkv_TC, self._cos_sin[id(rope)])
        self.pool.store(layer.index, self._writes_T, k_TGK, v_TGK)
        keys, values = self.pool.gather(layer.index, self._slots_SL)
        q_SRHK = q_THK.view(*self.keys.newest.shape, *q_THK.shape[1:])
        mask_SML = self._mask(layer.window, layer.num_heads // layer.num_kv_heads, q_THK.dtype)
        return attend_gathered(q_SRHK, keys, values, mask_SML).view(q_THK.shape[0], -1)

    def _mask(self, window: int | None, shared: int, dtype: torch.dtype) -> Tensor:
        """Additive [S, R * shared, L]: 0 where a row sees a key, -inf elsewhere; made once for all layers."""
        if (window, shared) not in self._masks:
            hidden_SML = ~self._seen(window).repeat_interleave(shared, dim=1)
            mask = torch.zeros(hidden_SML.shape, dtype=dtype, device=hidden_SML.device)
            self._masks[window, shared] = mask.masked_fill_(hidden_SML, float("-inf"))
        return self._masks[window, shared]

    def _seen(self, window: int | None) -> Tensor:
        """Which entries [S, R, L] a row sees; one that sees nothing reads the scratch entry, and nobody reads it."""
        keys = self.keys
        at_L = torch.arange(self._slots_SL.shape[1], device=keys.newest.device)
        newest_SR1 = keys.newest.clamp(min=keys.first)[..., None]
        position_SRL = at_L.expand(*keys.newest.shape, -1)
        seen_SRL = position_SRL <= newest_SR1
        if keys.paths is not None and keys.committed is not None:
            committed_S11 = keys.committed[:, None, None]
            in_path_SRPL = keys.paths[..., None] == at_L
            depths_P1 = torch.arange(keys.paths.shape[2], device=at_L.device)[:, None]
            in_path_SRPL &= depths_P1 <= (newest_SR1 - committed_S11)[..., None]
            position_SRL = torch.where(in_path_SRPL.any(2), committed_S11 + in_path_SRPL.long().argmax(2), position_SRL)
            seen_SRL = (position_SRL < committed_S11) | in_path_SRPL.any(2)
        seen_SRL = seen_SRL & (position_SRL >= keys.first)
        return seen_SRL if window is None else seen_SRL & (position_SRL > newest_SR1 - window)


def static_attend(pool: KVPool, keys: Keys) -> RowsAttend:
    """The backend for rows in static shapes."""
    if pool.pdl is None:
        return StaticAttend(pool, keys)
    from slipstream.attention.kernel import KernelAttend  # noqa: PLC0415 - needs triton

    return KernelAttend(pool, keys, pool.pdl)
