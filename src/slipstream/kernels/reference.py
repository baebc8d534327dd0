"""Plain-torch twins of the kernels: rotary embedding and attention over blocks of keys.

On a CPU every row's result is the same bits whatever rows it comes with: products run over blocks whose size and
place depend on absolute position alone, with at least MIN_QUERY_ROWS rows (fewer would take another code path of
the BLAS), and block sums are added in position order.

Shape letters: T packed tokens, H heads, G kv heads, g = H / G, K head width, R query rows, M = R * g, L keys,
O own keys of each row (a tree path's tail).
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

KEY_BLOCK = 128
MIN_QUERY_ROWS = 8
FIXED_KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # in graphs: these build no plans at their first use


def rotate_halves(x_THK: Tensor, cos_T1F: Tensor, sin_T1F: Tensor) -> Tensor:
    """Rotate each head's halves (x1, x2) by its position's angles; computed in fp32, returned in x's dtype."""
    x1, x2 = x_THK.float().chunk(2, dim=-1)
    rotated = torch.cat((x1 * cos_T1F - x2 * sin_T1F, x2 * cos_T1F + x1 * sin_T1F), dim=-1)
    return rotated.to(x_THK.dtype)


def attend_shared(
    q_RHK: Float[Tensor, "r h k"],
    k_LGK: Float[Tensor, "l g k"],
    v_LGK: Float[Tensor, "l g k"],
    mask_RL: Float[Tensor, "r l"],
) -> Float[Tensor, "r h k"]:
    """Attention of rows that share one list of keys: [R, H, K].

    L is a multiple of KEY_BLOCK; mask_RL is added to the scores (0 or -inf) and leaves each row at least one key.
    """
    num_rows, num_heads, width = q_RHK.shape
    num_groups = k_LGK.shape[1]
    q_GMK, mask_RL = _group_rows(q_RHK, num_groups, mask_RL)
    scores = _masked_scores(q_GMK, k_LGK, mask_RL)
    weights_GML = torch.softmax(scores, dim=-1).to(v_LGK.dtype).view(num_groups, q_GMK.shape[1], -1)
    out_GMK = _weighted_blocks(weights_GML, v_LGK)
    return _ungroup_rows(out_GMK, mask_RL.shape[0])[:num_rows].view(num_rows, num_heads, width)


def attend_paths(q_RHK: Tensor, shared: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], mask_RL: Tensor) -> Tensor:
    """Attention of tree rows: shared keys [S, G, K], then each row's own keys [R, O, G, K] in position order.

    S and O are multiples of KEY_BLOCK and L = S + O, so that the sums run exactly as for a chain at these positions.
    """
    num_rows, num_heads, width = q_RHK.shape
    k_SGK, v_SGK = shared
    k_ROGK, v_ROGK = own
    num_groups, num_shared = k_SGK.shape[1], k_SGK.shape[0]
    q_RGgK = _pad_dim(q_RHK.view(num_rows, num_groups, -1, width) * width**-0.5, 2)
    group = num_heads // num_groups
    own_scores = torch.stack(
        [torch.bmm(q_RGgK[:, j], k_ROGK[:, :, j].transpose(1, 2))[:, :group] for j in range(num_groups)]
    )
    scores = own_scores + mask_RL[:, None, num_shared:]
    if num_shared:
        q_GMK, padded_mask = _group_rows(q_RHK, num_groups, mask_RL[:, :num_shared])
        shared_scores = _masked_scores(q_GMK, k_SGK, padded_mask)[:, :num_rows]
        scores = torch.cat((shared_scores, scores), dim=-1)
    weights = torch.softmax(scores, dim=-1).to(v_ROGK.dtype)  # [G, R, g, L]
    out = _shared_then_own(weights, v_SGK, v_ROGK) if num_shared else _own_blocks(weights, v_ROGK)
    return out.permute(1, 0, 2, 3).reshape(num_rows, num_heads, width)


def attend_sdpa(
    q_RHK: Float[Tensor, "r h k"],
    k_LGK: Float[Tensor, "l g k"],
    v_LGK: Float[Tensor, "l g k"],
    mask_RL: Float[Tensor, "r l"],
) -> Float[Tensor, "r h k"]:
    """The same attention through torch's fused kernels, for accelerators: [R, H, K]."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_RHK, k_LGK, v_LGK))
    mask = mask_RL.to(q.dtype)[None, None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return out.squeeze(0).transpose(0, 1)


def attend_gathered(
    q_SRHK: Float[Tensor, "s r h k"],
    k_SLGK: Float[Tensor, "s l g k"],
    v_SLGK: Float[Tensor, "s l g k"],
    mask_SML: Float[Tensor, "s m l"],
) -> Float[Tensor, "s r n"]:
    """Attention of many requests at once, each over its own keys: [S, R, H * K].

    The g heads that share a key head become rows of it, M = R * g in all with a row's heads side by side, so that no
    key is repeated and one fused kernel does the rest. mask_SML is added to the scores, in the queries' dtype.
    """
    num_requests, num_rows, num_heads, width = q_SRHK.shape
    num_groups = k_SLGK.shape[2]
    q_SRGgK = q_SRHK.view(num_requests, num_rows, num_groups, -1, width)
    q_SGMK = q_SRGgK.transpose(1, 2).reshape(num_requests, num_groups, -1, width)
    mask = mask_SML[:, None].expand(-1, num_groups, -1, -1)
    with sdpa_kernel(FIXED_KERNELS) if q_SRHK.is_cuda else nullcontext():
        out = F.scaled_dot_product_attention(q_SGMK, k_SLGK.transpose(1, 2), v_SLGK.transpose(1, 2), attn_mask=mask)
    out_SGRgK = out.view(num_requests, num_groups, num_rows, -1, width)
    return out_SGRgK.transpose(1, 2).reshape(num_requests, num_rows, num_heads * width)


def _group_rows(q_RHK: Tensor, num_groups: int, mask_RL: Tensor) -> tuple[Tensor, Tensor]:
    """Scale queries and lay them out [G, M, K], padded to MIN_QUERY_ROWS; the mask gets the padding rows too."""
    num_rows, num_heads, width = q_RHK.shape
    group = num_heads // num_groups
    padded_rows = max(num_rows, -(-MIN_QUERY_ROWS // group))
    q_RGgK = _pad_rows(q_RHK * width**-0.5, padded_rows).view(padded_rows, num_groups, group, width)
    return q_RGgK.permute(1, 0, 2, 3).reshape(num_groups, padded_rows * group, width), _pad_rows(mask_RL, padded_rows)


def _masked_scores(q_GMK: Tensor, k_LGK: Tensor, mask_RL: Tensor) -> Tensor:
    """Scores [G, R, g, L] with the mask added."""
    scores_GML = torch.bmm(q_GMK, k_LGK.permute(1, 2, 0))
    num_rows, num_keys = mask_RL.shape
    return scores_GML.view(q_GMK.shape[0], num_rows, -1, num_keys) + mask_RL[:, None]


def _weighted_blocks(weights_GML: Tensor, v_LGK: Tensor) -> Tensor:
    """Sum of values, one fixed block after another."""
    v_GLK = v_LGK.transpose(0, 1)
    out_GMK = torch.bmm(weights_GML[..., :KEY_BLOCK], v_GLK[:, :KEY_BLOCK])
    for start in range(KEY_BLOCK, v_GLK.shape[1], KEY_BLOCK):
        stop = start + KEY_BLOCK
        out_GMK = out_GMK + torch.bmm(weights_GML[..., start:stop], v_GLK[:, start:stop])
    return out_GMK


def _shared_then_own(weights: Tensor, v_SGK: Tensor, v_ROGK: Tensor) -> Tensor:
    """Shared blocks first, then each own block, added in position order: [G, R, g, K]."""
    num_groups, num_rows, group, _ = weights.shape
    num_shared = v_SGK.shape[0]
    shared = weights[..., :num_shared].reshape(num_groups, num_rows * group, num_shared)
    padded = _pad_dim(shared, 1)
    out_GMK = _weighted_blocks(padded, v_SGK)[:, : num_rows * group]
    out = out_GMK.view(num_groups, num_rows, group, -1)
    for start in range(0, v_ROGK.shape[1], KEY_BLOCK):
        own = weights[..., num_shared + start : num_shared + start + KEY_BLOCK]
        out = out + _own_blocks(own, v_ROGK[:, start : start + KEY_BLOCK])
    return out


def _own_blocks(weights: Tensor, v_ROGK: Tensor) -> Tensor:
    """Sum of each row's own values: weights [G, R, g, O] to [G, R, g, K]."""
    num_groups, _, group, num_own = weights.shape
    padded = _pad_dim(weights, 2)
    heads = []
    for j in range(num_groups):
        out = torch.bmm(padded[j, ..., :KEY_BLOCK], v_ROGK[:, :KEY_BLOCK, j])
        for start in range(KEY_BLOCK, num_own, KEY_BLOCK):
            stop = start + KEY_BLOCK
            out = out + torch.bmm(padded[j, ..., start:stop], v_ROGK[:, start:stop, j])
        heads.append(out[:, :group])
    return torch.stack(heads)


def _ungroup_rows(out_GMK: Tensor, num_rows: int) -> Tensor:
    num_groups, _, width = out_GMK.shape
    return out_GMK.view(num_groups, num_rows, -1, width).transpose(0, 1).flatten(1)


def _pad_rows(x: Tensor, num_rows: int) -> Tensor:
    if x.shape[0] >= num_rows:
        return x
    return torch.cat((x, x.new_zeros(num_rows - x.shape[0], *x.shape[1:])))


def _pad_dim(x: Tensor, dim: int) -> Tensor:
    """Pad one dimension with zeros to MIN_QUERY_ROWS."""
    missing = MIN_QUERY_ROWS - x.shape[dim]
    if missing <= 0:
        return x.contiguous()
    shape = list(x.shape)
    shape[dim] = missing
    return torch.cat((x, x.new_zeros(shape)), dim=dim)
