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
    """The targets with which `accept` walks down the deepest path; rows without a child keep their own.

    Of several children the one above the deepest row is taken, then the first: a tree's first children may end early.
    """
    num_rows, parents_SN = tree.num_rows, tree.parents_SN[:, 1:]
    deepest_SN = tree.depths_SN
    for _ in range(tree.max_depth):
        deepest_SN = deepest_SN.scatter_reduce(1, parents_SN, deepest_SN[:, 1:], reduce="amax")
    places_SN = num_rows - 1 - torch.arange(num_rows, device=targets_SN.device)
    keys_SN = torch.full_like(targets_SN, -1)
    keys_SN.scatter_reduce_(1, parents_SN, (deepest_SN * num_rows + places_SN)[:, 1:], reduce="amax")
    child_SN = num_rows - 1 - keys_SN % num_rows
    return torch.where(keys_SN >= 0, tree.tokens_SN.gather(1, child_SN), targets_SN)
