"""The target's token at a position: argmax(filtered log p + noise), at temperature 0 plain argmax.

The noise is a function of (seed, position, token id), so plain decoding and every tree draw the same tokens.

Shape letters: R rows, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from slipstream.config.sampling import SamplingParams
from slipstream.kernels.draws import Draws
from slipstream.kernels.noise import gumbel_noise
from slipstream.parallel.cut import Shard
from slipstream.verify.shards import best_ids, whole_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of R rows on the device; None stands for "all greedy"."""

    sampled_R: Tensor  # rows with a temperature
    temperatures_R: Tensor
    top_k_R: Tensor
    top_p_R: Tensor
    min_p_R: Tensor
    seeds_R: Tensor
    filtered: bool  # whether any row cuts its distribution

    def repeat(self, times: int) -> "Sampling":
        """The same parameters for `times` consecutive rows each."""
        return self._each(lambda column_R: column_R.repeat_interleave(times))

    def take(self, rows: Tensor) -> "Sampling":
        """The parameters of some rows."""
        return self._each(lambda column_R: column_R[rows])

    def draws(self, positions_R: Tensor, first_id: int = 0) -> Draws:
        """The same for a head that draws by itself, filters aside; positions_R: where each row's token will stand."""
        temperatures_R = self.temperatures_R * self.sampled_R
        return Draws(temperatures=temperatures_R, seeds=self.seeds_R, positions=positions_R, first_id=first_id)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Sampling":
        names = ("sampled_R", "temperatures_R", "top_k_R", "top_p_R", "min_p_R", "seeds_R")
        return Sampling(**{name: change(getattr(self, name)) for name in names}, filtered=self.filtered)


def sampling_rows(
    params: Sequence[SamplingParams], seeds: Sequence[int], *, vocab_size: int, device: torch.device
) -> Sampling | None:
    """Parameters of a batch, or None when every row is greedy."""
    if all(each.greedy for each in params):
        return None

    def column(values: list[float] | list[int] | list[bool], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return Sampling(
        sampled_R=column([not each.greedy for each in params], torch.bool),
        temperatures_R=column([each.temperature or 1.0 for each in params], torch.float32),
        top_k_R=column([each.top_k or vocab_size for each in params], torch.int64),
        top_p_R=column([each.top_p for each in params], torch.float32),
        min_p_R=column([each.min_p for each in params], torch.float32),
        seeds_R=column(list(seeds), torch.int64),
        filtered=any(each.filtered for each in params),
    )


def draw(
    logits_RV: Float[Tensor, "r v"],
    sampling: Sampling | None,
    positions_R: Int[Tensor, " r"],
    shard: Shard | None = None,
) -> Int[Tensor, " r"]:
    """The target's token for each row; positions_R: where that token will stand.

    shard: the part of the vocabulary that the logits score; all of it if left out. The ranks exchange each shard's
    best alone, unless a filter needs whole rows.
    """
    if sampling is None:
        return best_ids(logits_RV, shard)
    if sampling.filtered:
        logits_RV, shard = whole_rows(logits_RV, shard), None
    first = 0 if shard is None else shard.first
    tokens_V = torch.arange(first, first + logits_RV.shape[1], device=logits_RV.device)
    scores_RV = filtered_scores(logits_RV, sampling)
    noised_RV = scores_RV + gumbel_noise(sampling.seeds_R, positions_R, tokens_V)
    return best_ids(torch.where(sampling.sampled_R[:, None], noised_RV, logits_RV), shard)


def filtered_scores(logits_RV: Float[Tensor, "r v"], sampling: Sampling) -> Float[Tensor, "r v"]:
    """Tempered log-scores with what top-k, then top-p, then min-p cut at -inf (Hugging Face's order).

    Ties at the edge of top-k or top-p are cut by id, so the kept set has one meaning.
    """
    scores_RV = logits_RV / sampling.temperatures_R[:, None]
    if not sampling.filtered:
        return scores_RV
    sorted_RV, order_RV = scores_RV.sort(dim=-1, descending=True, stable=True)
    ranks_V = torch.arange(scores_RV.shape[1], device=scores_RV.device)
    sorted_RV = sorted_RV.masked_fill(ranks_V >= sampling.top_k_R[:, None], float("-inf"))
    probabilities_RV = sorted_RV.softmax(-1)
    before_RV = probabilities_RV.cumsum(-1) - probabilities_RV
    top_p_R1 = sampling.top_p_R[:, None]  # 1 cuts nothing, though rounding may take the sum before a rare token past it
    sorted_RV = sorted_RV.masked_fill((before_RV >= top_p_R1) & (top_p_R1 < 1) & (ranks_V > 0), float("-inf"))
    floor_R1 = sampling.min_p_R[:, None] * sorted_RV.softmax(-1)[:, :1]
    sorted_RV = sorted_RV.masked_fill(sorted_RV.softmax(-1) < floor_R1, float("-inf"))
    return torch.full_like(scores_RV, float("-inf")).scatter_(1, order_RV, sorted_RV)
