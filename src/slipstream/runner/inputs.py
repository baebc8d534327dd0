"""What the device keeps of each running request, and the tensors of one cycle.

Shape letters: S requests, N rows of the tree, P path length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.attention.interface import RowsAttend
from slipstream.attention.pool import KVPool, SlotRun
from slipstream.attention.rows import attend_spans, attend_trees
from slipstream.attention.sequence import NO_ADDRESS
from slipstream.attention.static import SCRATCH_PAGE, static_attend
from slipstream.attention.tree import NO_ROW, TokenTree
from slipstream.draft.drafter import Pending
from slipstream.flow.batch import Batch
from slipstream.flow.prefill import Entry
from slipstream.kernels.keys import Keys
from slipstream.text.grammar import Automaton
from slipstream.verify.distribution import Sampling, sampling_rows
from slipstream.verify.history import History


@dataclass(slots=True, kw_only=True)
class Resident:
    """One running request on the device."""

    run: SlotRun
    pending: Pending | None  # None without a draft
    expects: tuple[int, int]  # the root token of its next cycle and that token's position
    entry: Entry | None = None  # while its context is being run
    context_T: Tensor | None = None  # the same as a tensor
    history: History | None = None  # what its parameters change scores by; None for most
    automaton: Automaton | None = None  # of its grammar, behind the last emitted token

    def follow(self, tokens: Sequence[int]) -> None:
        """Take emitted tokens; those behind a grammar's end belong to no answer."""
        if self.automaton is not None:
            for token in tokens:
                self.automaton.push(token)


def batch_sampling(batch: Batch, *, vocab_size: int, device: torch.device) -> Sampling | None:
    """Sampling parameters of the batch's requests."""
    params, seeds = [row.params for row in batch.rows], [row.seed for row in batch.rows]
    return sampling_rows(params, seeds, vocab_size=vocab_size, device=device)


def verify_attend(
    pool: KVPool, runs: Sequence[SlotRun], positions: Sequence[int], tree: TokenTree, *, page_size: int
) -> RowsAttend:
    """The backend that runs a batch's trees through the target: row i's entry stands at address root + i."""
    if pool.pdl is not None:
        roots_S = torch.tensor(positions, device=pool.device)
        pages_SE = pages_of(runs, page_size)
        most = pages_SE.shape[1] * page_size
        return static_attend(
            pool, tree_keys(Keys(pages=pages_SE, page=page_size, newest=roots_S, most=most), roots_S, tree)
        )
    if tree.is_chain:
        return attend_spans(pool, runs, [(root, root + tree.num_rows) for root in positions])
    root_S1 = torch.tensor(positions, device=pool.device)[:, None]
    return attend_trees(
        pool,
        runs,
        committed=positions,
        addresses_SR=root_S1 + torch.arange(tree.num_rows, device=pool.device),
        positions_SR=root_S1 + tree.depths_SN,
        paths_SRP=path_addresses(tree, root_S1),
    )


def pages_of(runs: Sequence[SlotRun], page_size: int) -> Tensor:
    """Page tables [S, E] of some requests, the scratch page beyond their ends."""
    pages = [run.slots[::page_size] // page_size for run in runs]
    return torch.nn.utils.rnn.pad_sequence(pages, batch_first=True, padding_value=SCRATCH_PAGE).int()


def tree_keys(keys: Keys, roots_S: Tensor, tree: TokenTree) -> Keys:
    """Which entries the rows of a tree see: row i's stands at address root + i, its path's where a chain's would."""
    root_S1 = roots_S[:, None]
    keys = replace(keys, newest=root_S1 if tree.num_rows == 1 else root_S1 + tree.depths_SN)
    if tree.is_chain:
        return keys
    return replace(
        keys,
        committed=roots_S,
        paths=path_addresses(tree, root_S1),
        writes=root_S1 + torch.arange(tree.num_rows, device=roots_S.device),
    )


def path_addresses(tree: TokenTree, root_S1: Tensor) -> Tensor:
    """Where the entries of each row's path stand, root first: [S, N, D], NO_ADDRESS beyond the row itself."""
    paths_SND = tree.paths()
    return torch.where(paths_SND == NO_ROW, NO_ADDRESS, paths_SND + root_S1[..., None])


def settle_path(pool: KVPool, run: SlotRun, root: int, rows: Tensor) -> None:
    """Move the entries of an accepted path, given by its tree rows, to the addresses of their positions."""
    wanted = torch.arange(rows.shape[0], device=rows.device)
    pool.move(run.slots[root + rows], run.slots[root + wanted])
