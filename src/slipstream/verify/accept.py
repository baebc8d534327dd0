"""Acceptance as a comparison: a drafted node is kept exactly if it is the target's own token.

Shape letters: S requests, N rows (root and draft tokens), D depth + 1.
"""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from slipstream.attention.tree import TokenTree


class Accepted(NamedTuple):
    """The accepted path of each request."""

    rows_SD: Tensor  # tree rows from the root down; only the first counts_S entries mean anything
    tokens_SD: Tensor  # the target's token after each of those rows: the emitted run
    counts_S: Tensor  # emitted tokens: accepted + 1


def accept(tree: TokenTree, targets_SN: Int[Tensor, "s n"], limits_S: Int[Tensor, " s"]) -> Accepted:
    """Walk from the root along the nodes the target agrees with.

    targets_SN: the target's token after each row (argmax, or the noised argmax of verify/distribution.py).
    limits_S: how deep a request may accept. Siblings differ, so at most one child can match.
    """
    parents_SN = tree.parents_SN.clamp(min=0)
    agrees_SN = (tree.tokens_SN == targets_SN.gather(1, parents_SN)) & (tree.depths_SN <= limits_S[:, None])
    kept_SN = tree.depths_SN == 0
    rows = [kept_SN.long().argmax(1)]
    for depth in range(1, tree.max_depth + 1):
        child_SN = (tree.depths_SN == depth) & agrees_SN & kept_SN.gather(1, parents_SN)
        kept_SN = kept_SN | child_SN
        rows.append(torch.where(child_SN.any(1), child_SN.long().argmax(1), 0))
    rows_SD = torch.stack(rows, dim=1)
    return Accepted(rows_SD, targets_SN.gather(1, rows_SD), kept_SN.sum(1))
