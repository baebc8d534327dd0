"""Plain-torch twins of the Triton kernels: what each must compute, written for reading.

Shape letters: T rows, D inputs, O outputs, V vocabulary, H heads, G kv heads, K head width, S sequences, R rows of
each, L slots, N keys of a row.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.kernels.noise import gumbel_noise
from slipstream.kernels.reference import rotate_halves

NO_KEY = -1


def linear_twin(
    x_TD: Tensor,
    w_OD: Tensor,
    *,
    bias: Tensor | None = None,
    norm: tuple[Tensor, float] | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """x W^T with a norm (weight, eps) of the rows before, and a residual or the gated product after."""
    if norm is not None:
        x_TD = F.rms_norm(x_TD, (x_TD.shape[1],), *norm)
    y_TO = F.linear(x_TD, w_OD, bias)
    if gated:
        gate, up = y_TO.chunk(2, dim=-1)
        return F.silu(gate) * up
    return y_TO if residual is None else residual + y_TO


def squares_twin(x_TD: Tensor, width: int) -> Tensor:
    """Sums of squares, fp32, of each row's parts of `width` (the last may be shorter): [T, ceil(D / width)]."""
    wide = F.pad(x_TD.float(), (0, -x_TD.shape[1] % width))
    return wide.view(x_TD.shape[0], -1, width).square().sum(-1)


def choose_twin(
    logits_TV: Tensor, temperatures_T: Tensor | None, seeds_T: Tensor, positions_T: Tensor, *, first_id: int = 0
) -> Tensor:
    """Scores [T, V] in fp32 whose argmax is each row's token: logits, or logits / temperature + noise."""
    scores = logits_TV.float()
    if temperatures_T is None:
        return scores
    tokens_V = torch.arange(first_id, first_id + scores.shape[1], device=scores.device)
    sampled = temperatures_T[:, None] > 0
    tempered = scores / torch.where(sampled, temperatures_T[:, None], 1.0)
    return torch.where(sampled, tempered + gumbel_noise(seeds_T, positions_T, tokens_V), scores)


def rotate_and_store_twin(
    qkv_TC: Tensor,
    positions_T: Tensor,
    slots_T: Tensor,
    tables_PF: tuple[Tensor, Tensor],
    pool_LGK: tuple[Tensor, Tensor],
    *,
    num_heads: int,
    norms_K: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Rotated queries [T, H, K]; keys and values are stored."""
    keys_LGK, values_LGK = pool_LGK
    num_kv_heads, width = keys_LGK.shape[1:]
    rows = qkv_TC.view(qkv_TC.shape[0], -1, width)
    queries, keys, values = rows.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    if norms_K is not None:
        queries, keys = (F.rms_norm(x, (width,), weight, eps) for x, weight in zip((queries, keys), norms_K))
    at = positions_T.long().clamp(max=tables_PF[0].shape[0] - 1)
    cos, sin = (table[at].unsqueeze(1) for table in tables_PF)
    keys_LGK[slots_T.long()] = rotate_halves(keys, cos, sin)
    values_LGK[slots_T.long()] = values
    return rotate_halves(queries, cos, sin)


def keys_of_row(
    newest: int,
    *,
    first: int = 0,
    window: int | None = None,
    committed: int | None = None,
    path: list[int] | None = None,
) -> list[int]:
    """Addresses that a row sees, in position order."""
    begin = max(first, 0 if window is None else newest - window + 1)
    if committed is None or path is None:
        return list(range(begin, newest + 1))
    return [at if at < committed else path[at - committed] for at in range(begin, newest + 1)]


def attention_twin(q_THK: Tensor, keys_LGK: Tensor, values_LGK: Tensor, slots_TN: Tensor) -> Tensor:
    """Attention [T, H, K] in fp32 of rows that each see some slots (NO_KEY = padding); no keys give zeros."""
    num_rows, num_heads, width = q_THK.shape
    out = torch.zeros(num_rows, num_heads, width, device=q_THK.device)
    for row in range(num_rows):
        slots = slots_TN[row][slots_TN[row] != NO_KEY].long()
        if len(slots):
            group = num_heads // keys_LGK.shape[1]
            keys = keys_LGK[slots].float().repeat_interleave(group, dim=1)
            values = values_LGK[slots].float().repeat_interleave(group, dim=1)
            scores = torch.einsum("hk,nhk->hn", q_THK[row].float(), keys) * width**-0.5
            out[row] = torch.einsum("hn,nhk->hk", scores.softmax(-1), values)
    return out.to(q_THK.dtype)
