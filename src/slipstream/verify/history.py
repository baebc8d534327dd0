"""What one request's parameters do to scores, and what of its tokens that depends on; None for most requests.

All of it belongs to one rank: ids are columns of the part of the vocabulary that the rank scores.

Shape letters: V that part, B biased ids, W bans, M tokens that a ban looks back on.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream.config.sampling import SamplingParams
from slipstream.parallel.cut import Shard

NO_TOKEN = -1  # before the first token
ANY_TOKEN = -2
FOREVER = 2**62


class Bias(NamedTuple):
    """What is added to scores, whatever came before."""

    columns_B: Tensor
    values_B: Tensor


class Bans(NamedTuple):
    """Tokens that may not come: bad words' last ones, and what would end an answer before its min_tokens."""

    columns_W: Tensor
    before_WM: Tensor  # the tokens that must stand before; ANY_TOKEN is met by all
    until_W: Tensor  # how many tokens the answer must have for the ban to end


@dataclass(slots=True, kw_only=True)
class History:
    """A request's bias, bans and counts."""

    params: SamplingParams
    bias: Bias | None
    bans: Bans | None
    num_answered: int  # tokens of the answer so far
    tail_M: Tensor  # the last tokens of prompt and answer
    counts_2V: Tensor | None  # how often each id is in the answer, and in prompt and answer; None without penalties
    shard: Shard

    def push(self, tokens: Tensor) -> None:
        """Take tokens that were emitted."""
        self.num_answered += tokens.shape[0]
        self.tail_M = torch.cat((self.tail_M, tokens))[tokens.shape[0] :]
        if self.counts_2V is not None:
            columns, own = columns_of(tokens, self.shard)
            self.counts_2V.index_add_(1, columns, own.float().expand(2, -1))


def open_history(
    params: SamplingParams,
    *,
    prompt: Sequence[int],
    answered: Sequence[int],
    stop_ids: Collection[int],
    shard: Shard,
    device: torch.device,
) -> History | None:
    """A request's history when its first cycle is near; None if nothing of it needs one.

    answered: what a request that was preempted had been given before. stop_ids: what ends an answer, EOS included.
    """
    if not params.processed and params.logprobs is None:
        return None
    bans = _bans(params, stop_ids, shard, device)
    context, size = [*prompt, *answered], 0 if bans is None else bans.before_WM.shape[1]
    tail = [NO_TOKEN] * size + context[max(0, len(context) - size) :]
    counts = None
    if params.penalised:
        counts = torch.stack([_count(answered, shard, device), _count(context, shard, device)])
    return History(
        params=params,
        bias=_bias(params, shard, device),
        bans=bans,
        num_answered=len(answered),
        tail_M=torch.tensor(tail[len(tail) - size :], dtype=torch.int64, device=device),
        counts_2V=counts,
        shard=shard,
    )


def columns_of(tokens: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """Columns of token ids, and which of them are this rank's; the others' columns mean nothing but can be read."""
    columns = tokens - shard.first
    own = (tokens >= 0) & (columns >= 0) & (columns < len(shard.span))
    return columns.clamp(0, len(shard.span) - 1), own


def _count(tokens: Sequence[int], shard: Shard, device: torch.device) -> Tensor:
    own = [token - shard.first for token in tokens if shard.span.start <= token < shard.span.stop]
    return torch.bincount(torch.tensor(own, dtype=torch.int64, device=device), minlength=len(shard.span)).float()


def _bias(params: SamplingParams, shard: Shard, device: torch.device) -> Bias | None:
    own = [(token - shard.first, value) for token, value in params.bias if shard.span.start <= token < shard.span.stop]
    if not own:
        return None
    columns, values = zip(*own, strict=True)
    return Bias(torch.tensor(columns, device=device), torch.tensor(values, dtype=torch.float32, device=device))


def _bans(params: SamplingParams, stop_ids: Collection[int], shard: Shard, device: torch.device) -> Bans | None:
    """Every ban of an id that this rank scores; each says what must stand before it and how long it holds."""
    bans = [(ids[-1], ids[:-1], FOREVER) for ids in params.bad_word_ids]
    if params.min_tokens:
        bans += [(token, (), params.min_tokens) for token in sorted(stop_ids)]
    bans = [ban for ban in bans if shard.span.start <= ban[0] < shard.span.stop]
    if not bans:
        return None
    size = max(len(before) for _, before, _ in bans)
    return Bans(
        torch.tensor([token - shard.first for token, _, _ in bans], device=device),
        torch.tensor(
            [[ANY_TOKEN] * (size - len(before)) + list(before) for _, before, _ in bans],
            dtype=torch.int64,
            device=device,
        ),
        torch.tensor([until for _, _, until in bans], device=device),
    )
