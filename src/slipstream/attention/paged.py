"""The paged backend: packed rows of several requests over one KV pool.

An entry's *address* counts from 0 inside its request; its *slot* is its place in the pool. The target's entry of
position p has address p. The draft's entry of position p reads token p + 1 and has address p + 1, so that a page
depends on its own tokens alone.

Shape letters: T packed rows, R rows of one request, L keys, P path length, H heads, K head width.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from slipstream.attention.interface import AttentionShape, RopeTable, heads
from slipstream.attention.pool import KVPool, SlotRun
from slipstream.kernels.reference import KEY_BLOCK, attend_paths, attend_sdpa, attend_shared


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRows:
    """The rows of one request in a packed forward.

    Without paths row r sees addresses [first, addresses[r]]. With paths it sees [first, committed) and the addresses
    of its path, root first and itself last (padded with NO_ADDRESS).
    """

    start: int  # rows [start, stop) of the batch
    stop: int
    run: SlotRun
    addresses: Tensor  # [R] where each row's entry is written
    last: int  # the last position that any row sees, counted as addresses are
    first: int = 0
    committed: int = 0  # with paths only
    paths: Tensor | None = None  # [R, P]


NO_ADDRESS = -1


@dataclass(slots=True)
class PagedAttend:
    """Attend over a pool for one forward; masks are made once and shared by the layers."""

    pool: KVPool
    positions_T: Tensor  # for RoPE
    slots_T: Tensor  # where each row's entry is written
    sequences: tuple[SequenceRows, ...]
    _cos_sin: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _masks: dict[tuple[int, int | None], Tensor] = field(default_factory=dict)
    _tails: dict[int, Tensor] = field(default_factory=dict)

    def __call__(self, layer: AttentionShape, qkv_TC: Tensor, rope: RopeTable) -> Tensor:
        """Store the rows' entries, then attend: [T, H * K]."""
        if id(rope) not in self._cos_sin:
            self._cos_sin[id(rope)] = rope.at(self.positions_T)
        q_THK, k_TGK, v_TGK = heads(layer, qkv_TC, self._cos_sin[id(rope)])
        self.pool.store(layer.index, self.slots_T, k_TGK, v_TGK)
        outputs = [
            self._attend(layer, index, q_THK[rows.start : rows.stop]) for index, rows in enumerate(self.sequences)
        ]
        out_THK = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return out_THK.reshape(q_THK.shape[0], -1)

    def _attend(self, layer: AttentionShape, index: int, q_RHK: Tensor) -> Tensor:
        rows = self.sequences[index]
        mask_RL = self._mask(index, layer.window)
        if rows.paths is not None:
            return self._attend_tree(layer, index, q_RHK, mask_RL)
        k_LGK, v_LGK = self.pool.read(layer.index, rows.run, mask_RL.shape[1])
        attend = attend_shared if q_RHK.device.type == "cpu" else attend_sdpa
        return attend(q_RHK, k_LGK, v_LGK, mask_RL)

    def _attend_tree(self, layer: AttentionShape, index: int, q_RHK: Tensor, mask_RL: Tensor) -> Tensor:
        rows = self.sequences[index]
        num_shared = rows.committed // KEY_BLOCK * KEY_BLOCK
        if index not in self._tails:
            self._tails[index] = tail_slots(rows, num_shared, mask_RL.shape[1] - num_shared)
        shared = self.pool.read(layer.index, rows.run, num_shared)
        own = self.pool.gather(layer.index, self._tails[index])
        return attend_paths(q_RHK, shared, own, mask_RL)

    def _mask(self, index: int, window: int | None) -> Tensor:
        if (index, window) not in self._masks:
            self._masks[index, window] = key_mask(self.sequences[index], window)
        return self._masks[index, window]


def key_mask(rows: SequenceRows, window: int | None) -> Tensor:
    """Additive mask [R, L]: 0 where a row sees a key, -inf elsewhere; L covers whole blocks of keys.

    With paths the columns are positions: a path's entries stand where a chain's would.
    """
    newest_R = rows.addresses
    if rows.paths is not None:
        newest_R = rows.committed + (rows.paths != NO_ADDRESS).sum(1) - 1
    num_keys = -(-(rows.last + 1) // KEY_BLOCK) * KEY_BLOCK
    keys_L = torch.arange(num_keys, device=newest_R.device)
    hidden_RL = keys_L > newest_R[:, None]
    if rows.first:
        hidden_RL |= keys_L < rows.first
    if window is not None:
        hidden_RL |= keys_L <= newest_R[:, None] - window
    return torch.zeros(hidden_RL.shape, device=newest_R.device).masked_fill_(hidden_RL, float("-inf"))


def tail_slots(rows: SequenceRows, num_shared: int, num_own: int) -> Tensor:
    """Slots [R, num_own] of each row's entries from address num_shared on, in position order; slot 0 is padding."""
    assert rows.paths is not None, "only tree rows have tails of their own"
    slots = rows.run.slots.new_zeros(rows.paths.shape[0], num_own)
    num_committed = rows.committed - num_shared
    slots[:, :num_committed] = rows.run.slots[num_shared : rows.committed]
    path_slots = rows.run.slots[rows.paths.clamp(min=0)].masked_fill(rows.paths == NO_ADDRESS, 0)
    slots[:, num_committed : num_committed + path_slots.shape[1]] = path_slots
    return slots
