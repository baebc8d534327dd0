"""Token embedding, cut over the vocabulary; a head may share its table.

Shape letters: T packed tokens, D hidden.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.parallel.cut import span_of
from slipstream.parallel.group import Group


class Embedding(nn.Module):
    """A [V, D] table read by token id; every rank of the group holds a run of its rows."""

    def __init__(self, vocab_size: int, hidden_size: int, *, group: Group) -> None:
        super().__init__()
        self.group, self.span = group, span_of(vocab_size, group.rank, group.size)
        self.weight = nn.Parameter(torch.empty(len(self.span), hidden_size))

    def forward(self, tokens_T: Tensor) -> Tensor:
        """Look up [T] ids: [T, D]."""
        return self.with_tag(tokens_T, None)[0]

    def with_tag(self, tokens_T: Tensor, tag_1D: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The same; a row that the ranks want summed travels with the lookup's own sum and is given back."""
        if self.group.size == 1:
            return F.embedding(tokens_T, self.weight), tag_1D
        local_T = tokens_T - self.span.start
        elsewhere_T = (local_T < 0) | (local_T >= len(self.span))
        rows_TD = F.embedding(local_T.masked_fill(elsewhere_T, 0), self.weight)
        rows_TD = rows_TD.masked_fill(elsewhere_T[:, None], 0)
        if tag_1D is None:
            return self.group.all_reduce(rows_TD, "embedding"), None
        total = self.group.all_reduce(torch.cat((rows_TD, tag_1D)), "embedding and tag")
        return total[:-1], total[-1:]
