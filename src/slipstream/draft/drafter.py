"""Propose a tree a cycle: extend over the emitted positions with true features, then steps - 1 more draft steps.

Decision 11 (the draft is never cold): what a cycle emitted waits as `Pending` and is run as one batch when the next
proposal opens or when the ring is full.

Shape letters: S requests, k topk, T packed rows, D draft hidden, F feature width, V draft vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.attention.paged import PagedAttend
from slipstream.attention.pool import KVPool, SlotRun
from slipstream.attention.rows import attend_spans, attend_trees
from slipstream.attention.tree import TokenTree, chain
from slipstream.config.speculation import Speculation
from slipstream.draft.checkpoint import LoadedDraft
from slipstream.draft.forced import or_forced, with_forced
from slipstream.draft.grow import Frontier, best_tree, candidate_scores, first_level, next_level
from slipstream.verify.distribution import Sampling
from slipstream.verify.shards import best_children, best_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Positions of one request that the draft has not seen yet."""

    start: int  # the first position
    tokens: Tensor  # [n] the token *after* each position
    features: Tensor  # [n, F] the target's features at each position

    @property
    def stop(self) -> int:
        """One past the last position: where the root stands."""
        return self.start + self.tokens.shape[0]

    def followed_by(self, tokens: Tensor, features: Tensor) -> "Pending":
        """The same with later positions added."""
        return Pending(
            start=self.start, tokens=torch.cat((self.tokens, tokens)), features=torch.cat((self.features, features))
        )


@dataclass(frozen=True, slots=True)
class Opening:
    """What extend leaves for the first drafted token of each request."""

    normed_SD: Tensor
    next_SD: Tensor


@dataclass(slots=True)
class Drafter:
    """The draft model over its own KV pool."""

    draft: LoadedDraft
    pool: KVPool

    def extend(self, pending: Sequence[Pending], runs: Sequence[SlotRun]) -> Opening:
        """Run the draft over waiting positions with the target's features; return each request's last row."""
        model = self.draft.model
        spans = [(each.start, each.stop) for each in pending]
        attend = attend_spans(self.pool, runs, spans, shift=1)
        tokens_T = torch.cat([each.tokens for each in pending])
        hidden = model(tokens_T, model.fuse(torch.cat([each.features for each in pending])), attend)
        counts = torch.tensor([stop - start for start, stop in spans], device=tokens_T.device)
        last_S = counts.cumsum(0) - 1
        return Opening(hidden.normed_TD[last_S], hidden.next_TD[last_S])

    def propose(
        self,
        opening: Opening,
        runs: Sequence[SlotRun],
        roots: Sequence[tuple[int, int]],
        shape: Speculation,
        sampling: Sampling | None,
        forced_SK: Tensor | None = None,
    ) -> TokenTree:
        """Grow a tree below each root (token, position); forced_SK: tokens that grammars force, see draft/forced.py."""
        device = opening.next_SD.device
        tokens_S = torch.tensor([token for token, _ in roots], device=device)
        positions = [position for _, position in roots]
        if shape.is_chain:
            return chain(self._chain(opening, runs, tokens_S, positions, shape.steps, sampling, forced_SK))
        return self._tree(opening, runs, tokens_S, positions, shape, sampling, forced_SK)

    def _chain(
        self,
        opening: Opening,
        runs: Sequence[SlotRun],
        tokens_S: Tensor,
        positions: list[int],
        steps: int,
        sampling: Sampling | None,
        forced_SK: Tensor | None,
    ) -> Tensor:
        """Roots and drafted tokens [S, steps + 1]."""
        root_S = torch.tensor(positions, device=tokens_S.device)
        columns = [tokens_S, or_forced(self.best(opening.normed_SD, sampling, root_S + 1), forced_SK, 0)]
        hidden_SD = opening.next_SD
        for step in range(1, steps):
            spans = [(root + step - 1, root + step) for root in positions]
            attend = attend_spans(self.pool, runs, spans, shift=1)
            hidden = self.draft.model(columns[-1], hidden_SD, attend)
            hidden_SD = hidden.next_TD
            columns.append(or_forced(self.best(hidden.normed_TD, sampling, root_S + step + 1), forced_SK, step))
        return torch.stack(columns, dim=1)

    def best(self, normed_SD: Tensor, sampling: Sampling | None, positions_S: Tensor) -> Tensor:
        """The draft's token for each position, as a target id."""
        scores_SV = self._scores(normed_SD, sampling, positions_S)
        return self.draft.target_ids[best_ids(scores_SV, self.draft.model.shard)]

    def _scores(self, normed_RD: Tensor, sampling: Sampling | None, positions_R: Tensor) -> Tensor:
        """Scores [R, V / size] of this rank's part of the draft vocabulary."""
        model = self.draft.model
        own_ids_V = self.draft.target_ids[model.shard.span.start : model.shard.span.stop]
        return candidate_scores(model.logits(normed_RD), sampling, positions_R, own_ids_V)

    def _tree(
        self,
        opening: Opening,
        runs: Sequence[SlotRun],
        tokens_S: Tensor,
        positions: list[int],
        shape: Speculation,
        sampling: Sampling | None,
        forced_SK: Tensor | None,
    ) -> TokenTree:
        model, ids_V, topk = self.draft.model, self.draft.target_ids, shape.topk
        root_S = torch.tensor(positions, device=tokens_S.device)
        scores_SV = self._scores(opening.normed_SD, sampling, root_S + 1)
        logs_Sk, children_Sk = best_children(scores_SV, topk, model.shard)
        grown, frontier = first_level(*with_forced(logs_Sk, ids_V[children_Sk], forced_SK, 0))
        repeated = None if sampling is None else sampling.repeat(topk)
        hidden_SkD = opening.next_SD[:, None].expand(-1, topk, -1)
        paths_SkP = root_S.new_empty(len(runs), topk, 0)
        for level in range(1, shape.steps):
            attend, paths_SkP = self._level_attend(runs, positions, frontier, paths_SkP, level)
            hidden = model(frontier.tokens_Sk.flatten(), hidden_SkD.flatten(0, 1), attend)
            where_R = (root_S + level + 1).repeat_interleave(topk)
            scores_RV = self._scores(hidden.normed_TD, repeated, where_R)
            logs_Rk, children_Rk = best_children(scores_RV, topk, model.shard)
            square = (len(runs), topk, topk)
            logs, tokens = logs_Rk.view(square), ids_V[children_Rk].view(square)
            best = with_forced(logs[:, 0], tokens[:, 0], forced_SK, level)  # below the forced path, which stands first
            logs[:, 0], tokens[:, 0] = best
            frontier = next_level(grown, frontier, logs, tokens)
            parent_Sk1 = frontier.parent_Sk[..., None]
            hidden_SkD = hidden.next_TD.view(len(runs), topk, -1).take_along_dim(parent_Sk1, dim=1)
        return best_tree(grown, tokens_S, draft_tokens=shape.draft_tokens)

    def _level_attend(
        self, runs: Sequence[SlotRun], positions: list[int], frontier: Frontier, paths_SkP: Tensor, level: int
    ) -> tuple[PagedAttend, Tensor]:
        """The backend for a level's k rows and their paths, one entry longer.

        Level l's entries stand at addresses root + 1 + (l - 1) * k onwards; the root's own is committed.
        """
        topk = frontier.tokens_Sk.shape[1]
        root_S1 = torch.tensor(positions, device=paths_SkP.device)[:, None]
        addresses_Sk = root_S1 + 1 + (level - 1) * topk + torch.arange(topk, device=root_S1.device)
        above = paths_SkP.take_along_dim(frontier.parent_Sk[..., None], dim=1)
        paths_SkP = torch.cat((above, addresses_Sk[..., None]), dim=2)
        attend = attend_trees(
            self.pool,
            runs,
            committed=[position + 1 for position in positions],
            addresses_SR=addresses_Sk,
            positions_SR=(root_S1 + level - 1).expand_as(addresses_Sk),
            paths_SRP=paths_SkP,
            first=1,
        )
        return attend, paths_SkP
