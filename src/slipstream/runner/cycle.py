"""One cycle on one device: propose, verify, accept; what was emitted waits for the next extend.

Shape letters: S requests, N rows of the tree, D depth + 1, F feature width, T = S * N packed rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.attention.pool import KVPool
from slipstream.attention.tree import TokenTree, chain
from slipstream.draft.drafter import Drafter, Opening, Pending
from slipstream.flow.batch import Batch, Row
from slipstream.flow.output import Run
from slipstream.models.decoder import Decoder
from slipstream.runner.inputs import Resident, batch_sampling, settle_path, verify_attend
from slipstream.verify.accept import Accepted, accept
from slipstream.verify.distribution import Sampling, draw


class Cycle:
    """The target, its KV pool and the drafter; a pure step from residents to runs."""

    def __init__(self, target: Decoder, pool: KVPool, drafter: Drafter | None, *, feature_ring: int) -> None:
        """feature_ring: how many emitted positions may wait for the draft while nothing is drafted."""
        self.target, self.pool, self.drafter, self.feature_ring = target, pool, drafter, feature_ring

    def step(self, batch: Batch, residents: Sequence[Resident]) -> tuple[Run, ...]:
        """Run one cycle for a batch of requests."""
        sampling = batch_sampling(batch, vocab_size=self.target.config.vocab_size, device=self.pool.device)
        tree = self.propose(batch, residents, sampling)
        targets_SN, features_TF = self.verify(batch, residents, tree, sampling)
        limits_S = torch.tensor([row.depth_limit for row in batch.rows], device=self.pool.device)
        accepted = accept(tree, targets_SN, limits_S)
        return self.commit(batch, residents, tree, accepted, features_TF)

    def propose(self, batch: Batch, residents: Sequence[Resident], sampling: Sampling | None) -> TokenTree:
        """Draft a tree below every root; without steps the tree is the root alone."""
        roots = [(row.root_token, row.root_position) for row in batch.rows]
        if self.drafter is None or batch.speculation.steps == 0:
            self._drain_rings(residents)
            tokens_S1 = torch.tensor([[token] for token, _ in roots], device=self.pool.device)
            return chain(tokens_S1)
        opening = self._extend(residents)
        runs = [each.run for each in residents]
        return self.drafter.propose(opening, runs, roots, batch.speculation, sampling)

    def verify(
        self, batch: Batch, residents: Sequence[Resident], tree: TokenTree, sampling: Sampling | None
    ) -> tuple[Tensor, Tensor | None]:
        """The target's own token after every row [S, N], and the rows' features [T, F]."""
        roots = [row.root_position for row in batch.rows]
        attend = verify_attend(self.pool, [each.run for each in residents], roots, tree)
        hidden = self.target(tree.tokens_SN.flatten(), attend)
        rows_sampling = None if sampling is None else sampling.repeat(tree.num_rows)
        tokens_T = draw(self.target.logits(hidden.final_TD), rows_sampling, attend.positions_T + 1)
        return tokens_T.view(tree.tokens_SN.shape), hidden.features_TF

    def commit(
        self,
        batch: Batch,
        residents: Sequence[Resident],
        tree: TokenTree,
        accepted: Accepted,
        features_TF: Tensor | None,
    ) -> tuple[Run, ...]:
        """Keep the accepted path: KV entries in position order, features for the next extend, tokens for the host."""
        counts = accepted.counts_S.tolist()  # sync: the host trims the run and schedules the next cycle
        tokens = accepted.tokens_SD.tolist()  # sync: as above
        depths = tree.depths_SN.tolist() if not tree.is_chain else None  # sync: proposed counts of trees
        for index, (row, resident) in enumerate(zip(batch.rows, residents, strict=True)):
            path = accepted.rows_SD[index, : counts[index]]
            if not tree.is_chain and counts[index] > 1:
                settle_path(self.pool, resident.run, row.root_position, path)
            if features_TF is not None:
                emitted = accepted.tokens_SD[index, : counts[index]]
                _remember(resident, row, emitted, features_TF[index * tree.num_rows + path])
        return tuple(
            _run(row, tokens[index][: counts[index]], tree, depths[index] if depths else None)
            for index, row in enumerate(batch.rows)
        )

    def _extend(self, residents: Sequence[Resident]) -> Opening:
        assert self.drafter is not None, "only a draft extends"
        pending = [each.pending for each in residents if each.pending is not None]
        opening = self.drafter.extend(pending, [each.run for each in residents])
        for each in residents:
            each.pending = None
        return opening

    def _drain_rings(self, residents: Sequence[Resident]) -> None:
        """Extend requests whose ring is full although nothing is drafted, so that the draft stays warm."""
        full = [each for each in residents if each.pending and each.pending.tokens.shape[0] >= self.feature_ring]
        if self.drafter is not None and full:
            self._extend(full)


def _remember(resident: Resident, row: Row, tokens: Tensor, features: Tensor) -> None:
    """Leave emitted positions for the next extend."""
    if resident.pending is not None:
        resident.pending = resident.pending.followed_by(tokens, features)
        return
    resident.pending = Pending(start=row.root_position, tokens=tokens, features=features)


def _run(row: Row, tokens: list[int], tree: TokenTree, depths: list[int] | None) -> Run:
    if depths is None:
        depths = list(range(tree.num_rows))
    within = [depth for depth in depths if 0 < depth <= row.depth_limit]
    return Run(request=row.request, tokens=tuple(tokens), proposed=len(within), depth=max(within, default=0))
