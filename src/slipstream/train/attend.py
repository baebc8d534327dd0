"""Attention of the training-time test (Li et al. 2025): each slot sees true keys up to itself, then its own drafts.

    step 0   keys s <= t of block 0                      (the extend pass over true features)
    step i   those, and the own key of blocks 1..i       (what a cycle's drafted positions would see)

Shape letters: B sequences, T tokens of each, R = B * T packed rows, H heads, G kv heads, g = H / G, K head width.
"""

import torch
from torch import Tensor

from slipstream.attention.interface import Attend, AttentionShape, RopeTable, heads


class TrainingAttend(Attend):
    """The Attend of one batch; call `begin` before each step, from 0 up."""

    def __init__(self, num_sequences: int, num_tokens: int, *, device: torch.device) -> None:
        self.shape = (num_sequences, num_tokens)
        self.positions_R = torch.arange(num_tokens, device=device).repeat(num_sequences)
        self.later_TT = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=device).triu(1)
        self.step = 0
        self._blocks: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def begin(self, step: int) -> None:
        """Move every slot to draft step `step`, whose RoPE position is t + step."""
        self.step = step

    def __call__(self, layer: AttentionShape, qkv_RC: Tensor, rope: RopeTable) -> Tensor:
        """Keep this step's keys and attend: [R, H * K]."""
        q_RHK, k_RGK, v_RGK = heads(layer, qkv_RC, rope.at(self.positions_R + self.step))
        blocks = self._blocks.setdefault(layer.index, [])
        assert len(blocks) == self.step, "steps run once each, in order, because each reads the keys of those before"
        blocks.append((k_RGK, v_RGK))
        q_RGgK = q_RHK.view(q_RHK.shape[0], layer.num_kv_heads, -1, layer.head_dim) * layer.head_dim**-0.5
        return self._mix(q_RGgK, blocks).reshape(q_RHK.shape[0], -1)

    def _mix(self, q_RGgK: Tensor, blocks: list[tuple[Tensor, Tensor]]) -> Tensor:
        """One softmax over block 0 and the diagonals: [R, G, g, K]."""
        (num_sequences, num_tokens), (num_rows, num_groups, group, width) = self.shape, q_RGgK.shape
        split = (num_sequences, num_tokens, num_groups, width)
        k_BGTK, v_BGTK = (x.view(split).transpose(1, 2) for x in blocks[0])
        flat = q_RGgK.view(num_sequences, num_tokens, num_groups, group, width).permute(0, 2, 3, 1, 4)
        flat = flat.reshape(num_sequences, num_groups, group * num_tokens, width)
        scores = torch.matmul(flat, k_BGTK.transpose(2, 3)).float()
        scores = scores.view(num_sequences, num_groups, group, num_tokens, num_tokens)
        scores = scores.masked_fill(self.later_TT, float("-inf"))
        if self.step:
            own_RGgI = torch.cat(
                [(q_RGgK * k[:, :, None]).sum(-1, keepdim=True, dtype=torch.float32) for k, _ in blocks[1:]], -1
            )
            own = own_RGgI.view(num_sequences, num_tokens, num_groups, group, self.step).permute(0, 2, 3, 1, 4)
            scores = torch.cat((scores, own), dim=-1)
        weights = scores.softmax(-1).to(q_RGgK.dtype)
        shared = weights[..., :num_tokens].reshape(num_sequences, num_groups, group * num_tokens, num_tokens)
        out = torch.matmul(shared, v_BGTK).view(num_sequences, num_groups, group, num_tokens, width)
        out_RGgK = out.permute(0, 3, 1, 2, 4).reshape(q_RGgK.shape)
        own_RGgI = weights[..., num_tokens:].permute(0, 3, 1, 2, 4).reshape(num_rows, num_groups, group, self.step)
        for index, (_, v_RGK) in enumerate(blocks[1:]):
            out_RGgK = out_RGgK + own_RGgI[..., index : index + 1] * v_RGK[:, :, None]
        return out_RGgK
