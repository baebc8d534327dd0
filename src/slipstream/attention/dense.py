"""Dense backends: whole sequences at once, for the trainer and for parity tests; and a rectangular cache for
batched answering.

Shape letters: B sequences, T tokens of each, H heads, G kv heads, K head width, L cache length.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.attention.interface import Attend, AttentionShape, RopeTable, heads


class DenseAttend(Attend):
    """Causal attention over B sequences of T tokens, packed as B * T rows; padding may stand at the right."""

    def __init__(self, num_sequences: int, num_tokens: int, *, device: torch.device) -> None:
        self.shape = (num_sequences, num_tokens)
        self.positions_T = torch.arange(num_tokens, device=device).repeat(num_sequences)
        self._cos_sin: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: AttentionShape, qkv_TC: Tensor, rope: RopeTable) -> Tensor:
        """Attend within each sequence: [B * T, H * K]."""
        if id(rope) not in self._cos_sin:
            self._cos_sin[id(rope)] = rope.at(self.positions_T)
        parts = heads(layer, qkv_TC, self._cos_sin[id(rope)])
        q, k, v = (x.view(*self.shape, *x.shape[1:]).transpose(1, 2) for x in parts)
        mask = _window_mask(self.shape[1], layer.window, q.device)
        grouped = layer.num_heads != layer.num_kv_heads
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
        return out.transpose(1, 2).reshape(qkv_TC.shape[0], -1)


class DenseCache:
    """A rectangular cache [N, B, G, L, K] for answering many prompts together; `at` gives the backend of one step."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_sequences: int,
        length: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, num_sequences, num_kv_heads, length, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    def keep(self, rows: Tensor) -> None:
        """Drop the sequences that are not in `rows`."""
        self.keys, self.values = self.keys[:, rows].contiguous(), self.values[:, rows].contiguous()


class DensePrefill(DenseAttend):
    """Attend within whole prompts and keep their entries in a cache."""

    def __init__(self, cache: DenseCache, num_sequences: int, num_tokens: int) -> None:
        super().__init__(num_sequences, num_tokens, device=cache.keys.device)
        self.cache = cache

    def __call__(self, layer: AttentionShape, qkv_TC: Tensor, rope: RopeTable) -> Tensor:
        """Store, then attend within each prompt."""
        cos_sin = rope.at(self.positions_T)
        _, k_TGK, v_TGK = heads(layer, qkv_TC, cos_sin)
        for cached, fresh in ((self.cache.keys, k_TGK), (self.cache.values, v_TGK)):
            cached[layer.index, :, :, : self.shape[1]] = fresh.view(*self.shape, *fresh.shape[1:]).transpose(1, 2)
        return super().__call__(layer, qkv_TC, rope)


class DenseStep(Attend):
    """One new token for every cached sequence, at its own position; keys are read up to `length`."""

    def __init__(self, cache: DenseCache, positions_B: Tensor, *, length: int) -> None:
        self.cache, self.positions_B, self.length = cache, positions_B, length
        keys_L = torch.arange(length, device=positions_B.device)
        self.hidden_BL = keys_L > positions_B[:, None]
        self._cos_sin: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: AttentionShape, qkv_BC: Tensor, rope: RopeTable) -> Tensor:
        """Store one entry a sequence and attend over its own past: [B, H * K]."""
        if id(rope) not in self._cos_sin:
            self._cos_sin[id(rope)] = rope.at(self.positions_B)
        q_BHK, k_BGK, v_BGK = heads(layer, qkv_BC, self._cos_sin[id(rope)])
        keys, values = self.cache.keys[layer.index], self.cache.values[layer.index]
        rows_B = torch.arange(q_BHK.shape[0], device=q_BHK.device)
        keys[rows_B, :, self.positions_B] = k_BGK
        values[rows_B, :, self.positions_B] = v_BGK
        q_BGgK = q_BHK.view(q_BHK.shape[0], layer.num_kv_heads, -1, layer.head_dim) * layer.head_dim**-0.5
        scores_BGgL = torch.matmul(q_BGgK, keys[:, :, : self.length].transpose(2, 3)).float()
        weights = scores_BGgL.masked_fill_(self._hidden(layer.window), float("-inf")).softmax(-1).to(q_BHK.dtype)
        return torch.matmul(weights, values[:, :, : self.length]).reshape(q_BHK.shape[0], -1)

    def _hidden(self, window: int | None) -> Tensor:
        hidden_BL = self.hidden_BL
        if window is not None:
            keys_L = torch.arange(self.length, device=hidden_BL.device)
            hidden_BL = hidden_BL | (keys_L <= self.positions_B[:, None] - window)
        return hidden_BL[:, None, None]


def _window_mask(num_tokens: int, window: int | None, device: torch.device) -> Tensor | None:
    if window is None or window >= num_tokens:
        return None
    rows = torch.arange(num_tokens, device=device)
    distance = rows[:, None] - rows
    return (distance >= 0) & (distance < window)
