"""Choices over a vocabulary that is cut over ranks: what travels is each shard's best, never its logits.

Shape letters: R rows, V a shard's vocabulary, W the whole one, k children.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from slipstream.parallel.cut import Shard, span_of

LOW_BITS = 0xFFFFFFFF


def best_ids(scores_RV: Float[Tensor, "r v"], shard: Shard | None) -> Int[Tensor, " r"]:
    """argmax over the whole vocabulary; without a shard the scores are of all of it. Equal scores: the lowest id.

    A score and its id travel as one integer whose order is the score's, so the ranks need one small gather and,
    given the same numbers, all decide the same.
    """
    local_R = scores_RV.argmax(-1)
    if shard is None or shard.group.size == 1:
        return local_R
    return best_of(scores_RV.gather(1, local_R[:, None])[:, 0].float(), local_R + shard.first, shard)


def best_of(values_R: Float[Tensor, " r"], ids_R: Int[Tensor, " r"], shard: Shard | None) -> Int[Tensor, " r"]:
    """The best of all ranks, of which each brings its own best score (fp32) and that one's id."""
    if shard is None or shard.group.size == 1:
        return ids_R
    with shard.group.mailing(ids_R, "all_gather", "best token") as mail:
        if mail is not None:
            from slipstream.kernels.exchange import best_of_ranks  # noqa: PLC0415 - needs triton

            return best_of_ranks(values_R.contiguous(), ids_R.contiguous(), mail)
    keys_R = (sortable(values_R) << 32) | (LOW_BITS - ids_R)
    best_R = shard.group.all_gather(keys_R, "best token").amax(0)
    return LOW_BITS - (best_R & LOW_BITS)


def best_children(
    scores_RV: Float[Tensor, "r v"], topk: int, shard: Shard | None
) -> tuple[Float[Tensor, "r k"], Int[Tensor, "r k"]]:
    """The k likeliest ids of each row with their log-probabilities over the whole vocabulary, best first."""
    if shard is None or shard.group.size == 1:
        best_Rk, ids_Rk = scores_RV.log_softmax(-1).topk(topk, dim=-1)
        return best_Rk, ids_Rk
    own = min(topk, scores_RV.shape[1])
    values_Rk, ids_Rk = scores_RV.topk(own, dim=-1)
    packed = scores_RV.new_full((scores_RV.shape[0], 2 * topk + 1), float("-inf"))
    packed[:, :own], packed[:, topk : topk + own] = values_Rk, (ids_Rk + shard.first).float()
    packed[:, -1] = scores_RV.logsumexp(-1)
    everyone = shard.group.all_gather(packed, "best children")
    values_RC = everyone[:, :, :topk].transpose(0, 1).flatten(1)
    ids_RC = everyone[:, :, topk:-1].transpose(0, 1).flatten(1)
    best_Rk, chosen_Rk = values_RC.topk(topk, dim=-1)
    return best_Rk - everyone[:, :, -1].logsumexp(0)[:, None], ids_RC.gather(1, chosen_Rk).long()


def logs_of(scores_RV: Float[Tensor, "r v"], ids_Rk: Int[Tensor, "r k"], shard: Shard | None) -> Float[Tensor, "r k"]:
    """Log-probabilities over the whole vocabulary of some ids of each row."""
    if shard is None or shard.group.size == 1:
        return scores_RV.log_softmax(-1).gather(1, ids_Rk)
    columns_Rk = ids_Rk - shard.first
    own_Rk = (columns_Rk >= 0) & (columns_Rk < scores_RV.shape[1])
    values_Rk = scores_RV.gather(1, columns_Rk.clamp(0, scores_RV.shape[1] - 1))
    values_Rk = values_Rk.masked_fill(~own_Rk, float("-inf"))
    everyone = shard.group.all_gather(torch.cat((values_Rk, scores_RV.logsumexp(-1)[:, None]), 1), "log-probabilities")
    return everyone[:, :, :-1].amax(0) - everyone[:, :, -1].logsumexp(0)[:, None]


def whole_rows(logits_RV: Float[Tensor, "r v"], shard: Shard | None) -> Float[Tensor, "r w"]:
    """The rows over the whole vocabulary: only a filtered distribution (top-k, top-p, min-p) needs them."""
    if shard is None or shard.group.size == 1:
        return logits_RV
    size = shard.group.size
    widths = [len(span_of(shard.total, rank, size)) for rank in range(size)]
    padded = F.pad(logits_RV, (0, max(widths) - logits_RV.shape[1]))
    shards = shard.group.all_gather(padded, "filtered logits")
    return torch.cat([part[:, :width] for part, width in zip(shards, widths, strict=True)], dim=1)


def sortable(values_R: Float[Tensor, " r"]) -> Int[Tensor, " r"]:
    """32-bit integers (in int64) that are ordered as the fp32 values are; both zeros are one."""
    bits_R = (values_R + 0.0).view(torch.int32).long()  # -0 + 0 is +0
    return torch.where(bits_R < 0, bits_R ^ 0x7FFFFFFF, bits_R)
