"""Tokens that a grammar forces are drafts that cost nothing: they stand where the draft's own best would.

Whether the target spells the forced text with these tokens is for verification to say, as with any draft.

Shape letters: S requests, K steps, k topk.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

NOT_FORCED = -1
BEHIND = 1e4  # what every path beside a forced one loses, in log-probability


def or_forced(tokens_S: Int[Tensor, " s"], forced_SK: Int[Tensor, "s k"] | None, step: int) -> Int[Tensor, " s"]:
    """A level of chains: the forced token where there is one."""
    if forced_SK is None:
        return tokens_S
    forced_S = forced_SK[:, step]
    return torch.where(forced_S == NOT_FORCED, tokens_S, forced_S)


def with_forced(
    logs_Sk: Float[Tensor, "s k"], tokens_Sk: Int[Tensor, "s k"], forced_SK: Int[Tensor, "s steps"] | None, step: int
) -> tuple[Float[Tensor, "s k"], Int[Tensor, "s k"]]:
    """The children of a tree's best node: first the forced token, certain; the others far behind, all distinct."""
    if forced_SK is None:
        return logs_Sk, tokens_Sk
    forced_S1 = forced_SK[:, step, None]
    is_forced_S1 = forced_S1 != NOT_FORCED
    freed_Sk = torch.where(tokens_Sk == forced_S1, tokens_Sk[:, :1], tokens_Sk)  # its place goes to the first
    children_Sk = torch.cat((forced_S1, freed_Sk[:, 1:]), dim=1)
    behind_Sk = torch.cat((torch.zeros_like(logs_Sk[:, :1]), logs_Sk[:, 1:] - BEHIND), dim=1)
    return torch.where(is_forced_S1, behind_Sk, logs_Sk), torch.where(is_forced_S1, children_Sk, tokens_Sk)
