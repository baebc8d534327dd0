"""Propose a tree a cycle: extend over the emitted positions with true features, then steps - 1 more draft steps.

Decision 11 (the draft is never cold): what a cycle emitted waits as `Pending` and is run as one batch when the next
proposal opens or when the ring is full.

Shape letters: S requests, k topk, T packed rows, D draft hidden, F feature width, V draft vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.attention.interface import Attend, RowsAttend
from slipstream.attention.paged import PagedAttend
from slipstream.attention.pool import KVPool, SlotRun
from slipstream.attention.rows import attend_spans, attend_trees
from slipstream.attention.tree import TokenTree, chain
from slipstream.config.speculation import Speculation
from slipstream.draft.checkpoint import LoadedDraft
from slipstream.draft.forced import or_forced, with_forced
from slipstream.draft.grow import best_tree, candidate_scores, first_level, next_level
from slipstream.verify.distribution import Sampling
from slipstream.verify.shards import best_children, best_ids, best_of


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
        root_S = torch.tensor(positions, device=device)
        if shape.is_chain:

            def at_step(step: int) -> RowsAttend:
                return attend_spans(self.pool, runs, [(root + step - 1, root + step) for root in positions], shift=1)

            return chain(self.chain(opening, tokens_S, root_S, shape.steps, sampling, forced_SK, at_step))

        def at_level(level: int, addresses_Sk: Tensor, paths_SkP: Tensor) -> PagedAttend:
            return attend_trees(
                self.pool,
                runs,
                committed=[position + 1 for position in positions],
                addresses_SR=addresses_Sk,
                positions_SR=(root_S[:, None] + level - 1).expand_as(addresses_Sk),
                paths_SRP=paths_SkP,
                first=1,
            )

        return self.tree(opening, tokens_S, root_S, shape, sampling, forced_SK, at_level)

    def chain(
        self,
        opening: Opening,
        tokens_S: Tensor,
        root_S: Tensor,
        steps: int,
        sampling: Sampling | None,
        forced_SK: Tensor | None,
        at_step: Callable[[int], Attend],
    ) -> Tensor:
        """Roots and drafted tokens [S, steps + 1]; at_step: the backend of a draft step, 1 the first after extend."""
        columns = [tokens_S, or_forced(self.best(opening.normed_SD, sampling, root_S, 1), forced_SK, 0)]
        hidden_SD = opening.next_SD
        for step in range(1, steps):
            hidden = self.draft.model(columns[-1], hidden_SD, at_step(step))
            hidden_SD = hidden.next_TD
            columns.append(or_forced(self.best(hidden.normed_TD, sampling, root_S, step + 1), forced_SK, step))
        return torch.stack(columns, dim=1)

    def best(self, normed_SD: Tensor, sampling: Sampling | None, root_S: Tensor, depth: int) -> Tensor:
        """The draft's token for the position `depth` below each root, as a target id."""
        model, ids_V = self.draft.model, self.draft.target_ids
        own_ids_V = ids_V[model.shard.span.start : model.shard.span.stop]
        draws = None if sampling is None else sampling.draws(root_S + depth)
        if (choice := model.products.choose(model.head, normed_SD, draws, own_ids_V)) is not None:
            return best_of(choice.values, choice.ids, model.shard)
        scores_SV = self._scores(normed_SD, sampling, root_S + depth)
        return ids_V[best_ids(scores_SV, model.shard)]

    def _scores(self, normed_RD: Tensor, sampling: Sampling | None, positions_R: Tensor) -> Tensor:
        """Scores [R, V / size] of this rank's part of the draft vocabulary."""
        model = self.draft.model
        own_ids_V = self.draft.target_ids[model.shard.span.start : model.shard.span.stop]
        return candidate_scores(model.logits(normed_RD), sampling, positions_R, own_ids_V)

    def tree(
        self,
        opening: Opening,
        tokens_S: Tensor,
        root_S: Tensor,
        shape: Speculation,
        sampling: Sampling | None,
        forced_SK: Tensor | None,
        at_level: Callable[[int, Tensor, Tensor], Attend],
    ) -> TokenTree:
        """Grow a tree below each root.

        at_level: the backend of a level's k rows, given where their entries go and their paths [S, k, P] of addresses.
        Level l's entries stand at addresses root + 1 + (l - 1) * k onwards; the root's own is committed.
        """
        model, ids_V, topk = self.draft.model, self.draft.target_ids, shape.topk
        square = (len(root_S), topk, topk)
        scores_SV = self._scores(opening.normed_SD, sampling, root_S + 1)
        logs_Sk, children_Sk = best_children(scores_SV, topk, model.shard)
        grown, frontier = first_level(*with_forced(logs_Sk, ids_V[children_Sk], forced_SK, 0))
        repeated = None if sampling is None else sampling.repeat(topk)
        hidden_SkD = opening.next_SD[:, None].expand(-1, topk, -1)
        paths_SkP = root_S.new_empty(len(root_S), topk, 0)
        places_k = 1 + torch.arange(topk, device=root_S.device)
        for level in range(1, shape.steps):
            addresses_Sk = root_S[:, None] + places_k + (level - 1) * topk
            above = paths_SkP.take_along_dim(frontier.parent_Sk[..., None], dim=1)
            paths_SkP = torch.cat((above, addresses_Sk[..., None]), dim=2)
            attend = at_level(level, addresses_Sk, paths_SkP)
            hidden = model(frontier.tokens_Sk.flatten(), hidden_SkD.flatten(0, 1), attend)
            where_R = (root_S + level + 1).repeat_interleave(topk)
            scores_RV = self._scores(hidden.normed_TD, repeated, where_R)
            logs_Rk, children_Rk = best_children(scores_RV, topk, model.shard)
            logs, tokens = logs_Rk.view(square), ids_V[children_Rk].view(square)
            best = with_forced(logs[:, 0], tokens[:, 0], forced_SK, level)  # below the forced path, which stands first
            logs[:, 0], tokens[:, 0] = best
            frontier = next_level(grown, frontier, logs, tokens)
            parent_Sk1 = frontier.parent_Sk[..., None]
            hidden_SkD = hidden.next_TD.view(len(root_S), topk, -1).take_along_dim(parent_Sk1, dim=1)
        return best_tree(grown, tokens_S, draft_tokens=shape.draft_tokens)
