"""The rows of one request in a packed forward, and which keys they see.

Shape letters: R rows of one request, L keys, P path length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.attention.pool import SlotRun
from slipstream.kernels.reference import KEY_BLOCK

NO_ADDRESS = -1


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

    @property
    def num_rows(self) -> int:
        """How many rows."""
        return self.stop - self.start

    @property
    def num_keys(self) -> int:
        """Whole blocks of keys, up to the last position that any row sees."""
        return -(-(self.last + 1) // KEY_BLOCK) * KEY_BLOCK


def key_mask(rows: SequenceRows, window: int | None) -> Tensor:
    """Additive mask [R, L]: 0 where a row sees a key, -inf elsewhere; L covers whole blocks of keys.

    With paths the columns are positions: a path's entries stand where a chain's would.
    """
    newest_R = rows.addresses
    if rows.paths is not None:
        newest_R = rows.committed + (rows.paths != NO_ADDRESS).sum(1) - 1
    return seen_mask(newest_R, rows.num_keys, first=rows.first, window=window)


def seen_mask(newest_R: Tensor, num_keys: int, *, first: int, window: int | None) -> Tensor:
    """Additive mask [R, num_keys]: row r sees the keys [first, newest_R[r]], of them the last `window`."""
    keys_L = torch.arange(num_keys, device=newest_R.device)
    hidden_RL = keys_L > newest_R[:, None]
    if first:
        hidden_RL |= keys_L < first
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
