"""Token embedding; a head may share its table."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Embedding(nn.Module):
    """A [V, D] table read by token id."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))

    def forward(self, tokens_T: Tensor) -> Tensor:
        """Look up [T] ids: [T, D]."""
        return F.embedding(tokens_T, self.weight)
