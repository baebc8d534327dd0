"""The paged backend in static shapes, as a CUDA graph needs it: lengths live on the device, in tensors.

Every request has the same number of rows and reads the same number of entries, gathered from the pool; what it does not
have is masked. Reading grows with the longest request of the batch, so this suits short contexts best.

Shape letters: S requests, R rows of each, T = S * R, L keys of each, H heads, G kv heads, K head width.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from slipstream.attention.interface import AttentionShape, RopeTable, heads
from slipstream.attention.pool import KVPool
from slipstream.kernels.reference import attend_gathered

SCRATCH_SLOT = 0  # of the scratch page: what padding rows write, and nobody reads


@dataclass(slots=True)
class StaticAttend:
    """Attend over a pool for one forward; row r of a request sees the entries [first, addresses[r]]."""

    pool: KVPool
    slots_SL: Tensor  # where each request's entries live; SCRATCH_SLOT beyond its end
    addresses_SR: Tensor  # the last entry that each row sees: its own
    writes_SR: Tensor  # the slot that each row writes; SCRATCH_SLOT for padding rows
    first: int = 0  # 0 for the target, 1 for the draft, whose entries stand at position + 1
    _cos_sin: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _masks: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)

    @property
    def positions_T(self) -> Tensor:
        """For RoPE, and for the noise of draws."""
        return (self.addresses_SR - self.first).flatten()

    def __call__(self, layer: AttentionShape, qkv_TC: Tensor, rope: RopeTable) -> Tensor:
        """Store the rows' entries, then attend: [T, H * K]."""
        if id(rope) not in self._cos_sin:
            self._cos_sin[id(rope)] = rope.at(self.positions_T)
        q_THK, k_TGK, v_TGK = heads(layer, qkv_TC, self._cos_sin[id(rope)])
        self.pool.store(layer.index, self.writes_SR.flatten(), k_TGK, v_TGK)
        keys, values = self.pool.gather(layer.index, self.slots_SL)
        q_SRHK = q_THK.view(*self.addresses_SR.shape, *q_THK.shape[1:])
        mask_SML = self._mask(layer.window, layer.num_heads // layer.num_kv_heads, q_THK.dtype)
        return attend_gathered(q_SRHK, keys, values, mask_SML).view(q_THK.shape[0], -1)

    def _mask(self, window: int | None, shared: int, dtype: torch.dtype) -> Tensor:
        """Additive [S, R * shared, L]: 0 where a row sees a key, -inf elsewhere; made once for all layers."""
        if (window, shared) not in self._masks:
            keys_L = torch.arange(self.slots_SL.shape[1], device=self.slots_SL.device)
            newest_SM1 = self.addresses_SR.repeat_interleave(shared, dim=1)[..., None]
            hidden = (keys_L > newest_SM1) | (keys_L < self.first)
            if window is not None:
                hidden = hidden | (keys_L <= newest_SM1 - window)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=keys_L.device)
            self._masks[window, shared] = mask.masked_fill_(hidden, float("-inf"))
        return self._masks[window, shared]


def rows_from(pool: KVPool, slots_SL: Tensor, addresses_SR: Tensor, *, first: int = 0) -> StaticAttend:
    """Rows that all count: each writes its entry at its own address."""
    return StaticAttend(pool, slots_SL, addresses_SR, slots_SL.gather(1, addresses_SR), first)
