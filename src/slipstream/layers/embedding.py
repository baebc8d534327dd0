"""Token embedding, cut over the vocabulary; a head may share its table.

Shape letters: T packed tokens, D hidden.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.parallel.cut import span_of
from slipstream.parallel.group import Group


class Lookup(NamedTuple):
    """Rows of a table that are read where they are used first."""

    table_VD: Tensor
    ids_T: Tensor


Rows = Tensor | Lookup


def read(rows: Rows) -> Tensor:
    """The rows [T, D] themselves."""
    return F.embedding(rows.ids_T, rows.table_VD) if isinstance(rows, Lookup) else rows


class Embedding(nn.Module):
    """A [V, D] table read by token id; every rank of the group holds a run of its rows."""

    def __init__(self, vocab_size: int, hidden_size: int, *, group: Group) -> None:
        super().__init__()
        self.group, self.span = group, span_of(vocab_size, group.rank, group.size)
        self.weight = nn.Parameter(torch.empty(len(self.span), hidden_size))

    def forward(self, tokens_T: Tensor) -> Tensor:
        """Look up [T] ids: [T, D]."""
        return read(self.look_up(tokens_T)[0])

    def look_up(self, tokens_T: Tensor, tag_1D: Tensor | None = None) -> tuple[Rows, Tensor | None]:
        """The same, perhaps not read yet; a row that the ranks want summed travels with the lookup's own sum."""
        if self.group.size == 1:
            return Lookup(self.weight, tokens_T), tag_1D
        rows_TD = self._own_rows(tokens_T)
        if tag_1D is None:
            return self.group.all_reduce(rows_TD, "embedding"), None
        total = self.group.all_reduce(torch.cat((rows_TD, tag_1D)), "embedding and tag")
        return total[:-1], total[-1:]

    def _own_rows(self, tokens_T: Tensor) -> Tensor:
        """Rows that this rank holds; zeros for the others."""
        if self.weight.is_cuda:
            from slipstream.kernels.lookup import shard_rows  # noqa: PLC0415 - needs triton

            return shard_rows(self.weight, tokens_T.contiguous(), first=self.span.start)
        local_T = tokens_T - self.span.start
        elsewhere_T = (local_T < 0) | (local_T >= len(self.span))
        rows_TD = F.embedding(local_T.masked_fill(elsewhere_T, 0), self.weight)
        return rows_TD.masked_fill(elsewhere_T[:, None], 0)
