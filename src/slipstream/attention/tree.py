"""The tree of drafted tokens that one verify forward checks.

Row 0 of every request is the root: the last committed token. Parents stand before their children.

Shape letters: S requests, N rows (root and draft tokens), D depth + 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

NO_PARENT = -1
NO_ROW = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTree:
    """Drafted tokens of a batch, all requests in one shape."""

    tokens_SN: Tensor  # int64 target ids
    parents_SN: Tensor  # row of the parent, NO_PARENT for the root
    depths_SN: Tensor  # 0 for the root
    max_depth: int  # = steps
    is_chain: bool
    scores_SN: Tensor | None = None  # log of each row's path probability under the draft; where the draft grew a tree

    @property
    def num_rows(self) -> int:
        """Rows a request, root included."""
        return self.tokens_SN.shape[1]

    def paths(self) -> Tensor:
        """Rows on the way from the root to each row, itself last: [S, N, D], NO_ROW beyond."""
        num_requests, num_rows = self.tokens_SN.shape
        shape = (num_requests, num_rows, self.max_depth + 1)
        paths_SND = torch.full(shape, NO_ROW, device=self.tokens_SN.device)
        rows_SN = torch.arange(num_rows, device=paths_SND.device).expand(num_requests, num_rows)
        for _ in range(self.max_depth + 1):
            depth_SN = self.depths_SN.gather(1, rows_SN)
            paths_SND.scatter_(2, depth_SN[..., None], rows_SN[..., None])
            rows_SN = self.parents_SN.gather(1, rows_SN).clamp(min=0)
        return paths_SND


def chain(tokens_SN: Tensor) -> TokenTree:
    """A tree in which every row has one child; tokens_SN starts with the roots."""
    num_rows = tokens_SN.shape[1]
    depths_SN = torch.arange(num_rows, device=tokens_SN.device).expand(tokens_SN.shape)
    return TokenTree(
        tokens_SN=tokens_SN, parents_SN=depths_SN - 1, depths_SN=depths_SN, max_depth=num_rows - 1, is_chain=True
    )
