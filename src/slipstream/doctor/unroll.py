"""Unroll a draft several steps deep from some slots of each sequence only: the rest of the text is read once.

The same numbers as train/unroll.py's `unroll_forced` at those slots, for less work: prompts are longer than answers.

Shape letters: B sequences, T tokens of each, R = B * T packed rows, A slots of each sequence, S = B * A, D draft
hidden, H heads, G kv heads, g = H / G, K head width.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.attention.interface import Attend, AttentionShape, RopeTable, heads
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.train.unroll import autocast, shifted


def unroll_slots(
    draft: Eagle3Draft, tokens_BT: Tensor, features_RF: Tensor, slots_BA: Tensor, *, shift: int, steps: int
) -> Iterator[Tensor]:
    """Yield each step's normed hidden states [S, D] at the slots, fed the text's own tokens.

    slots_BA: positions inside each sequence. shift: 1 where the draft at position p embeds token p + 1, 0 for p.
    """
    attend = SlotAttend(*tokens_BT.shape, slots_BA=slots_BA)
    rows_S = attend.rows_S
    with autocast(tokens_BT.device):
        out = draft(shifted(tokens_BT, shift), draft.fuse(features_RF).float(), attend)
        yield out.normed_TD[rows_S]
        hidden_SD = out.next_TD[rows_S]
        for step in range(1, steps):
            attend.step = step
            out = draft(shifted(tokens_BT, shift + step)[rows_S], hidden_SD, attend)
            yield out.normed_TD
            hidden_SD = out.next_TD


class SlotAttend(Attend):
    """The Attend of one batch: all rows at step 0, then the slots alone, each with true keys and its own drafts."""

    def __init__(self, num_sequences: int, num_tokens: int, *, slots_BA: Tensor) -> None:
        device = slots_BA.device
        self.shape, self.slots_BA, self.step = (num_sequences, num_tokens), slots_BA, 0
        self.positions_R = torch.arange(num_tokens, device=device).repeat(num_sequences)
        starts_B1 = torch.arange(num_sequences, device=device)[:, None] * num_tokens
        self.rows_S = (starts_B1 + slots_BA).flatten()
        self.seen_BAT = torch.arange(num_tokens, device=device) <= slots_BA[..., None]
        self._true: dict[int, tuple[Tensor, Tensor]] = {}
        self._own: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(self, layer: AttentionShape, qkv_RC: Tensor, rope: RopeTable) -> Tensor:
        """Keep this step's keys and attend: [rows, H * K]."""
        if self.step == 0:
            return self._all(layer, qkv_RC, rope)
        q_SHK, k_SGK, v_SGK = heads(layer, qkv_RC, rope.at(self.slots_BA.flatten() + self.step))
        own = self._own.setdefault(layer.index, [])
        own.append((k_SGK, v_SGK))
        return self._mix(q_SHK * layer.head_dim**-0.5, *self._true[layer.index], own)

    def _all(self, layer: AttentionShape, qkv_RC: Tensor, rope: RopeTable) -> Tensor:
        parts = heads(layer, qkv_RC, rope.at(self.positions_R))
        q_BHTK, k_BGTK, v_BGTK = (x.view(*self.shape, *x.shape[1:]).transpose(1, 2) for x in parts)
        self._true[layer.index] = (k_BGTK, v_BGTK)
        grouped = layer.num_heads != layer.num_kv_heads
        out = F.scaled_dot_product_attention(q_BHTK, k_BGTK, v_BGTK, is_causal=True, enable_gqa=grouped)
        return out.transpose(1, 2).reshape(qkv_RC.shape[0], -1)

    def _mix(self, q_SHK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, own: list[tuple[Tensor, Tensor]]) -> Tensor:
        """One softmax over the true keys up to the slot and the slot's own drafted ones: [S, H * K]."""
        (num_sequences, num_slots), (_, num_groups, num_tokens, width) = self.slots_BA.shape, k_BGTK.shape
        q_BGgAK = q_SHK.view(num_sequences, num_slots, num_groups, -1, width).permute(0, 2, 3, 1, 4)
        true = torch.einsum("bghak,bgtk->bghat", q_BGgAK, k_BGTK).float()
        true = true.masked_fill(~self.seen_BAT[:, None, None], float("-inf"))
        split = (num_sequences, num_slots, num_groups, width)
        keys, values = (torch.stack([pair[side].view(split) for pair in own], dim=-2) for side in (0, 1))  # B A G I K
        drafted = torch.einsum("bghak,bagik->bghai", q_BGgAK, keys).float()
        weights = torch.cat((true, drafted), dim=-1).softmax(-1).to(q_SHK.dtype)
        out = torch.einsum("bghat,bgtk->baghk", weights[..., :num_tokens], v_BGTK)
        out = out + torch.einsum("bghai,bagik->baghk", weights[..., num_tokens:], values)
        return out.reshape(q_SHK.shape[0], -1)
