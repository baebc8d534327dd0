"""Which tokens a grammar allows after each row of a tree: its automaton walks the tree and comes back to the root.

The masks are made on the host while the verify forward runs; a row that its grammar can never reach has none, since the
target's masked token above it is another one.

Shape letters: T packed rows of a batch's trees, G of them with a mask, W words of 32 tokens, V ids that this rank
scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from slipstream.parallel.cut import Shard

LEAST = -1e30  # of a token that its grammar allows and a ban forbids: drawn if nothing else is left
WORD_BITS = 32


@runtime_checkable
class Automaton(Protocol):
    """A grammar's state after some tokens (text/grammar.py)."""

    def push(self, token: int) -> bool:
        """Take a token if it may come here."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        ...

    def fill(self, words_W: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        """Set the bits of the tokens that may come next."""
        ...


@dataclass(frozen=True, slots=True)
class Masks:
    """The tokens allowed after some rows, a bit each."""

    rows_G: Tensor  # of the packed rows
    words_GW: Tensor  # int32

    def to(self, device: torch.device) -> "Masks":
        """The same on a device."""
        return Masks(self.rows_G.to(device), self.words_GW.to(device))


def walk(automaton: Automaton, tokens: Sequence[int], parents: Sequence[int], *, num_words: int) -> dict[int, Any]:
    """Masks [W] of the rows of one tree that the grammar can reach; row 0 is where the automaton is."""
    children: list[list[int]] = [[] for _ in tokens]
    for row, parent in enumerate(parents[1:], start=1):
        children[parent].append(row)
    found: dict[int, Any] = {}

    def visit(row: int) -> None:
        found[row] = np.zeros(num_words, dtype=np.int32)
        automaton.fill(found[row])
        for child in children[row]:
            if automaton.push(tokens[child]):
                visit(child)
                automaton.rollback(1)

    visit(0)
    return found


def joined(found: Sequence[tuple[int, dict[int, Any]]], num_rows: int) -> Masks:
    """The masks of a batch: of each request with a grammar its place and its rows'."""
    rows = [place * num_rows + row for place, masks in found for row in masks]
    words = [words for _, masks in found for words in masks.values()]
    return Masks(torch.tensor(rows), torch.from_numpy(np.stack(words)))


def forbid(logits_TV: Float[Tensor, "t v"], masks: Masks, shard: Shard) -> None:
    """Take what is not allowed out of the scores, in place."""
    num_columns = logits_TV.shape[1]
    ids_V = torch.arange(shard.first, shard.first + num_columns, device=logits_TV.device)
    words_GV = masks.words_GW[:, ids_V // WORD_BITS]
    allowed_GV = (words_GV >> (ids_V % WORD_BITS).int()) & 1 == 1
    scores_GV = logits_TV[masks.rows_G].clamp(min=LEAST)
    logits_TV.index_copy_(0, masks.rows_G, scores_GV.masked_fill(~allowed_GV, float("-inf")))
