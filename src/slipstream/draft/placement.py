"""One draft, many placements: how a tree reaches the ranks that did not grow it, and how they know it is the same.

Where every rank grows the tree itself (the draft whole on all, or cut over all), no tree travels. Where it could differ
its hash does, in a row of the verify forward's first sum, and a cycle whose ranks disagree is run again with rank 0's
tree.

Shape letters: S requests, N rows of the tree, D width of the row that carries the hashes.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.attention.tree import TokenTree, chain
from slipstream.config.speculation import Speculation
from slipstream.kernels.noise import mix
from slipstream.parallel.group import Group

HASH_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A rank's place in a placement."""

    group: Group | None  # what the draft is cut over; None: this rank holds none of it
    target: Group  # every rank
    grown_by_all: bool  # no tree travels
    whole: bool = True  # the ranks that draft hold all of the draft each, and choose by themselves
    drafts: bool = True  # some rank holds a draft

    @property
    def travels(self) -> bool:
        """Whether the tree is handed round."""
        return self.target.size > 1 and not self.grown_by_all

    def compares(self, *, is_chain: bool) -> bool:
        """Whether the ranks compare the trees that they grew. A chain of a draft that is cut over them is the same on
        all: each of its tokens is the best of the same exchanged integers (`verify/shards.py`).
        """
        return self.grown_by_all and (self.whole or not is_chain)


def blank_tree(num_requests: int, shape: Speculation, device: torch.device) -> TokenTree:
    """A tree to receive another rank's in."""
    tokens_SN = torch.zeros(num_requests, shape.num_rows, dtype=torch.int64, device=device)
    if shape.is_chain:
        return chain(tokens_SN)
    return TokenTree(
        tokens_SN=tokens_SN,
        parents_SN=tokens_SN.clone(),
        depths_SN=tokens_SN.clone(),
        max_depth=shape.steps,
        is_chain=False,
    )


def hand_round(tree: TokenTree, group: Group) -> TokenTree:
    """Rank 0's tree, on every rank: one broadcast of integers."""
    if tree.is_chain:
        return replace(tree, tokens_SN=group.broadcast(tree.tokens_SN.contiguous(), "tree"))
    packed = torch.stack((tree.tokens_SN, tree.parents_SN, tree.depths_SN))
    tokens_SN, parents_SN, depths_SN = group.broadcast(packed, "tree").unbind(0)
    return TokenTree(
        tokens_SN=tokens_SN,
        parents_SN=parents_SN,
        depths_SN=depths_SN,
        max_depth=tree.max_depth,
        is_chain=False,
        scores_SN=tree.scores_SN,  # rank 0's own; they do not travel
    )


def hash_row(tree: TokenTree, group: Group, *, width: int, dtype: torch.dtype) -> Tensor:
    """This rank's hash in its own columns of a row [1, D], zeros elsewhere; bytes are exact in any float format.

    Raises:
        ValueError: the row is too narrow for this many ranks.
    """
    if group.size * HASH_BYTES > width:
        raise ValueError(f"a hidden state of {width} columns has no room for the hashes of {group.size} ranks")
    bytes_B = (_hash(tree)[None] >> torch.arange(0, 8 * HASH_BYTES, 8, device=tree.tokens_SN.device)) & 0xFF
    row_1D = torch.zeros(1, width, dtype=dtype, device=tree.tokens_SN.device)
    row_1D[0, group.rank * HASH_BYTES : (group.rank + 1) * HASH_BYTES] = bytes_B.to(dtype)
    return row_1D


def all_agree(row_1D: Tensor, group: Group) -> Tensor:
    """Whether every rank's hash in the summed row is rank 0's: one bool, the same on all ranks."""
    hashes = row_1D[0, : group.size * HASH_BYTES].view(group.size, HASH_BYTES)
    return (hashes == hashes[:1]).all()


def _hash(tree: TokenTree) -> Tensor:
    """A number that changes with any token, parent or place."""
    values = torch.cat((tree.tokens_SN.flatten(), tree.parents_SN.flatten()))
    places = torch.arange(values.shape[0], device=values.device)
    return mix(mix(places + 1) + values).sum()
