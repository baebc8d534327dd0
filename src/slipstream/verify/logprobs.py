"""Log-probabilities of tokens: raw, as the model has them, and processed, as an emitted one was drawn from them.

Shape letters: R tokens, V the part of the vocabulary that this rank scores, k reported ids (the chosen first).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from slipstream.flow.logprobs import Logprobs, TokenLogprob
from slipstream.parallel.cut import Shard
from slipstream.verify.distribution import Sampling, filtered_scores
from slipstream.verify.shards import best_children, logs_of, whole_rows


class Scores(NamedTuple):
    """What logprobs are read from: of all verified rows, or of some."""

    raw_RV: Tensor
    processed_RV: Tensor  # after bias, penalties and bans; before temperature and filters
    sampling: Sampling | None

    def take(self, rows_R: Tensor) -> "Scores":
        """The same of some rows."""
        sampling = None if self.sampling is None else self.sampling.take(rows_R)
        return Scores(self.raw_RV[rows_R], self.processed_RV[rows_R], sampling)


def logprobs(scores: Scores, tokens_R: Int[Tensor, " r"], wanted: Sequence[int], shard: Shard) -> tuple[Logprobs, ...]:
    """Of each token, and of as many of its row's likeliest ids as are wanted: by the model, before processing."""
    ids_Rk = _ids(scores.raw_RV, tokens_R, wanted, shard)
    raw_Rk = logs_of(scores.raw_RV, ids_Rk, shard)
    return _reported(ids_Rk, raw_Rk, _processed(scores, ids_Rk, shard), wanted)


def prompt_logprobs(
    logits_RV: Float[Tensor, "r v"], tokens_R: Int[Tensor, " r"], wanted: Sequence[int], shard: Shard
) -> tuple[Logprobs, ...]:
    """The same of tokens that were given, not drawn: by the model, under both names."""
    ids_Rk = _ids(logits_RV, tokens_R, wanted, shard)
    raw_Rk = logs_of(logits_RV, ids_Rk, shard)
    return _reported(ids_Rk, raw_Rk, raw_Rk, wanted)


def _ids(raw_RV: Tensor, tokens_R: Tensor, wanted: Sequence[int], shard: Shard) -> Tensor:
    """Each token, then its row's likeliest ids, as many as the row that wants most."""
    most = min(max(wanted), shard.total)
    if not most:
        return tokens_R[:, None]
    return torch.cat((tokens_R[:, None], best_children(raw_RV, most, shard)[1]), dim=1)


def _reported(ids_Rk: Tensor, raw_Rk: Tensor, processed_Rk: Tensor, wanted: Sequence[int]) -> tuple[Logprobs, ...]:
    found = torch.stack((ids_Rk.double(), raw_Rk.double(), processed_Rk.double()), dim=2)
    rows: list[list[list[float]]] = found.tolist()  # sync: the host reports them
    return tuple(_named(row[: 1 + count]) for row, count in zip(rows, wanted, strict=True))


def _processed(scores: Scores, ids_Rk: Tensor, shard: Shard) -> Tensor:
    """After everything; a greedy row has no temperature and no filters."""
    sampling, processed_RV = scores.sampling, scores.processed_RV
    if sampling is None:
        return logs_of(processed_RV, ids_Rk, shard)
    if not sampling.filtered:
        return logs_of(filtered_scores(processed_RV, sampling), ids_Rk, shard)  # a greedy row's temperature is 1
    whole_RW = whole_rows(processed_RV, shard)
    drawn_RW = torch.where(sampling.sampled_R[:, None], filtered_scores(whole_RW, sampling), whole_RW)
    return logs_of(drawn_RW, ids_Rk, None)


def _named(row: list[list[float]]) -> Logprobs:
    chosen, *top = [TokenLogprob(token=int(token), raw=raw, processed=processed) for token, raw, processed in row]
    return Logprobs(chosen=chosen, top=tuple(top))
