"""The paged backend: packed rows of several requests over one KV pool.

An entry's *address* counts from 0 inside its request; its *slot* is its place in the pool. The target's entry of
position p has address p. The draft's entry of position p reads token p + 1 and has address p + 1, so that a page
depends on its own tokens alone.

Shape letters: T packed rows, R rows of one request, L keys, P path length, H heads, K head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from slipstream.attention.interface import Attend, AttentionShape, RopeTable, heads
from slipstream.attention.packed import PackedRows
from slipstream.attention.pool import KVPool
from slipstream.attention.sequence import SequenceRows, key_mask, tail_slots
from slipstream.kernels.reference import KEY_BLOCK, attend_paths, attend_sdpa, attend_shared

PACKED_ROWS = 16  # of one request; with more, the products are most of the work and the masks would be large


@dataclass(slots=True)
class PagedAttend(Attend):
    """Attend over a pool for one forward; masks are made once and shared by the layers."""

    pool: KVPool
    positions_T: Tensor  # for RoPE
    slots_T: Tensor  # where each row's entry is written
    sequences: tuple[SequenceRows, ...]
    _cos_sin: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _masks: dict[tuple[int, int | None], Tensor] = field(default_factory=dict)
    _tails: dict[int, Tensor] = field(default_factory=dict)
    _packed: dict[tuple[int, int, int | None], PackedRows] = field(default_factory=dict)

    def __call__(self, layer: AttentionShape, qkv_TC: Tensor, rope: RopeTable) -> Tensor:
        """Store the rows' entries, then attend: [T, H * K]."""
        if id(rope) not in self._cos_sin:
            self._cos_sin[id(rope)] = rope.at(self.positions_T)
        q_THK, k_TGK, v_TGK = heads(layer, qkv_TC, self._cos_sin[id(rope)])
        self.pool.store(layer.index, self.slots_T, k_TGK, v_TGK)
        if packable(self.sequences, q_THK):
            return self._packed_rows(layer)(self.pool, layer.index, q_THK).view(q_THK.shape[0], -1)
        outputs = [
            self.attend_rows(layer, index, q_THK[rows.start : rows.stop]) for index, rows in enumerate(self.sequences)
        ]
        out_THK = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return out_THK.reshape(q_THK.shape[0], -1)

    def _packed_rows(self, layer: AttentionShape) -> PackedRows:
        key = (layer.num_heads, layer.num_kv_heads, layer.window)
        if key not in self._packed:
            self._packed[key] = PackedRows(self.sequences, layer)
        return self._packed[key]

    def attend_rows(self, layer: AttentionShape, index: int, q_RHK: Tensor) -> Tensor:
        """The rows of one request, whose entries are stored."""
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


def packable(sequences: Sequence[SequenceRows], q_THK: Tensor) -> bool:
    """Whether all requests have few rows, all on their chain, on a CPU in fp32."""
    on_cpu = q_THK.device.type == "cpu" and q_THK.dtype == torch.float32
    return on_cpu and all(rows.paths is None and rows.num_rows <= PACKED_ROWS for rows in sequences)
