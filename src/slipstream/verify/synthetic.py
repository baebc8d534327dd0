"""Acceptance by decree, to time cycles apart from a draft's quality: real tokens, a chosen accept length.

Decided in the accept step alone: the drafted tokens become the emitted ones, everything else runs as ever.

Shape letters: S requests, N rows of the tree.
"""

import math

import torch
from torch import Tensor

from slipstream.attention.tree import TokenTree
from slipstream.kernels.noise import mix


def decreed_counts(seeds_S: Tensor, positions_S: Tensor, accept_length: float) -> Tensor:
    """How many drafted tokens each request accepts [S]: accept_length - 1 on average, floor or ceiling of it."""
    wanted = accept_length - 1
    uniform_S = ((mix(mix(seeds_S) + positions_S) >> 32) & 0xFFFFFFFF).double() * 2.0**-32
    return math.floor(wanted) + (uniform_S < wanted - math.floor(wanted)).long()


def decreed_targets(tree: TokenTree, targets_SN: Tensor) -> Tensor:
    """The targets with which `accept` walks down every row's first child; rows without one keep their own."""
    num_rows = tree.num_rows
    rows_SN = torch.arange(num_rows, device=targets_SN.device).expand(targets_SN.shape)
    first_SN = torch.full_like(targets_SN, num_rows)
    first_SN.scatter_reduce_(1, tree.parents_SN[:, 1:], rows_SN[:, 1:].contiguous(), reduce="amin")
    drafted_SN = tree.tokens_SN.gather(1, first_SN.clamp(max=num_rows - 1))
    return torch.where(first_SN < num_rows, drafted_SN, targets_SN)
