"""One cycle on one rank: propose, verify, accept; what was emitted waits for the next extend.

Shape letters: S requests, N rows of the tree, D depth + 1, F feature width, T = S * N packed rows.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from slipstream.attention.interface import RowsAttend
from slipstream.attention.pool import KVPool
from slipstream.attention.tree import TokenTree, chain
from slipstream.config.engine import PAGE_SIZE
from slipstream.draft.drafter import Drafter, Opening, Pending
from slipstream.draft.placement import Seat, all_agree, blank_tree, hand_round, hash_row
from slipstream.flow.batch import Batch, Row
from slipstream.flow.output import Run
from slipstream.models.decoder import Decoder
from slipstream.parallel.stamps import Stage
from slipstream.runner.inputs import Resident, batch_sampling, settle_path, verify_attend
from slipstream.runner.keeping import PageFeatures
from slipstream.runner.masking import MaskMaker, MasksToCome, forced_tokens, no_masks, padded
from slipstream.runner.report import report_runs
from slipstream.verify.accept import Accepted, accept
from slipstream.verify.distribution import Sampling
from slipstream.verify.logprobs import Scores
from slipstream.verify.processors import Histories, draw_processed
from slipstream.verify.shards import best_of
from slipstream.verify.synthetic import decreed_counts, decreed_targets


class Marks(Protocol):
    """Who is told which stage a cycle enters."""

    def mark(self, stage: Stage) -> None:
        """Enter a stage."""
        ...


def draw_in_head(target: Decoder, final_TD: Tensor, sampling: Sampling | None, attend: RowsAttend) -> Tensor | None:
    """The target's tokens, chosen where its logits are made; None where that cannot be."""
    if sampling is not None and sampling.filtered:
        return None
    draws = None if sampling is None else sampling.draws(attend.positions_T + 1, target.shard.first)
    choice = target.products.choose(target.head, final_TD, draws)
    if choice is None:
        return None
    ids_T = choice.ids + target.shard.first if target.shard.first else choice.ids
    return best_of(choice.values, ids_T, target.shard)


def unheard(stage: Stage) -> None:
    """Nobody measures."""


class Verified(NamedTuple):
    """What the verify forward says."""

    targets_SN: Tensor  # the target's own token after every row
    features_TF: Tensor | None
    agreed: Tensor | None  # whether all ranks verified one tree; None where they cannot differ
    scores: Scores | None = None  # where some request wants log-probabilities


def accept_by_kernel(
    tree: TokenTree,
    verified: Verified,
    limits_S: Tensor,
    seeds_S: Tensor,
    positions_S: Tensor,
    *,
    decreed: float | None,
    pdl: bool,
) -> Accepted:
    """What chains accept, in one kernel."""
    from slipstream.kernels.accept import accept_chains  # noqa: PLC0415 - needs triton

    tokens_SN, seeds_S, positions_S = tree.tokens_SN.contiguous(), seeds_S.contiguous(), positions_S.contiguous()
    emitted_SN, counts_S = accept_chains(
        tokens_SN,
        verified.targets_SN,
        limits_S.contiguous(),
        seeds_S=seeds_S,
        positions_S=positions_S,
        decreed=decreed,
        agreed=verified.agreed,
        pdl=pdl,
    )
    return Accepted(tree.depths_SN, emitted_SN, counts_S)


class Cycle:
    """The target, its KV pool and the drafter; a pure step from residents to runs."""

    def __init__(
        self,
        target: Decoder,
        pool: KVPool,
        drafter: Drafter | None,
        masker: MaskMaker,
        page_features: PageFeatures | None,
        *,
        seat: Seat,
        stamps: Marks,
        feature_ring: int,
        page_size: int = PAGE_SIZE,
        synthetic_accept_length: float | None = None,
    ) -> None:
        """page_features: None without a draft. feature_ring: how many emitted positions may wait while nothing is
        drafted.
        """
        self.reruns = 0  # cycles run twice because the ranks' trees differed
        self.target, self.pool, self.drafter, self.masker = target, pool, drafter, masker
        self.seat, self.feature_ring, self.page_features = seat, feature_ring, page_features
        self.stamps: Marks = stamps
        self.page_size = page_size
        self.on_enter: Callable[[Stage], None] = unheard  # told within captured work, by whoever measures it
        self.synthetic_accept_length = synthetic_accept_length

    def step(self, batch: Batch, residents: Sequence[Resident]) -> tuple[Run, ...]:
        """Run one cycle for a batch of requests."""
        sampling = batch_sampling(batch, vocab_size=self.target.config.vocab_size, device=self.pool.device)
        tree = self.propose(batch, residents, sampling)
        verified, accepted = self._verify_and_accept(batch, residents, tree, sampling)
        counts = accepted.counts_S.tolist()  # sync: the host trims the run and schedules the next cycle
        if verified.agreed is not None and not all(counts):  # nothing was committed: once more, with rank 0's tree
            self.reruns += 1
            tree = hand_round(tree, self.seat.target)
            verified, accepted = self._verify_and_accept(batch, residents, tree, sampling, check=False)
            counts = accepted.counts_S.tolist()  # sync: as above, in the rare cycle that is run twice
        runs = self.commit(batch, residents, tree, accepted, counts, verified.features_TF)
        histories = [each.history for each in residents]
        return report_runs(runs, histories, accepted, verified.scores, self.target.shard)

    def propose(self, batch: Batch, residents: Sequence[Resident], sampling: Sampling | None) -> TokenTree:
        """Draft a tree below every root; without steps the tree is the root alone."""
        roots, steps = [(row.root_token, row.root_position) for row in batch.rows], batch.speculation.steps
        forced = forced_tokens([each.automaton for each in residents], steps)
        if all(len(tokens) == steps for tokens in forced):  # plain decoding, or nothing is left to draft
            self.drain_rings(residents, full=self.feature_ring)
            rows = [[token, *tokens] for (token, _), tokens in zip(roots, forced, strict=True)]
            return chain(torch.tensor(rows, device=self.pool.device))
        if self.drafter is None:
            tree = blank_tree(len(roots), batch.speculation, self.pool.device)
        else:
            opening, runs = self._extend(residents), [each.run for each in residents]
            self.stamps.mark(Stage.PROPOSE)
            forced_SK = padded(forced, steps, self.pool.device)
            tree = self.drafter.propose(opening, runs, roots, batch.speculation, sampling, forced_SK)
        return hand_round(tree, self.seat.target) if self.seat.travels else tree

    def verify(
        self,
        batch: Batch,
        residents: Sequence[Resident],
        tree: TokenTree,
        sampling: Sampling | None,
        *,
        check: bool = False,
    ) -> Verified:
        """Run the target over a tree; check: whether the ranks compare what they verify."""
        masks = self.masker.start(tree, [each.automaton for each in residents], self.pool.device)
        roots = [row.root_position for row in batch.rows]
        runs = [each.run for each in residents]
        attend = verify_attend(self.pool, runs, roots, tree, page_size=self.page_size)
        histories = [each.history for each in residents]
        return self.look(tree, attend, sampling, check=check, histories=histories, masks=masks)

    def look(
        self,
        tree: TokenTree,
        attend: RowsAttend,
        sampling: Sampling | None,
        *,
        check: bool,
        histories: Histories = (),
        masks: MasksToCome = no_masks,
    ) -> Verified:
        """The verify forward over rows that a backend stands ready for; tensors only.

        histories, masks: of the batch's requests; left out, none has one.
        """
        width, dtype, everyone = self.target.config.hidden_size, self.target.norm.weight.dtype, self.seat.target
        tag_1D = hash_row(tree, everyone, width=width, dtype=dtype) if check else None
        hidden = self.target(tree.tokens_SN.flatten(), attend, tag_1D)
        rows_sampling = None if sampling is None else sampling.repeat(tree.num_rows)
        tokens_T, scores = None, None
        if not any(histories) and masks is no_masks:
            tokens_T = draw_in_head(self.target, hidden.final_TD, rows_sampling, attend)
        if tokens_T is None:
            logits_TV, positions_T, shard = (
                self.target.logits(hidden.final_TD),
                attend.positions_T + 1,
                self.target.shard,
            )
            tokens_T, scores = draw_processed(logits_TV, tree, histories, rows_sampling, positions_T, shard, masks())
        agreed = None if hidden.tag_1D is None else all_agree(hidden.tag_1D, everyone)
        return Verified(tokens_T.view(tree.tokens_SN.shape), hidden.features_TF, agreed, scores)

    def accept(self, batch: Batch, tree: TokenTree, verified: Verified) -> Accepted:
        """Walk down each tree as far as its request may go."""
        rows = [(row.depth_limit, row.seed, row.root_position) for row in batch.rows]
        limits_S, seeds_S, positions_S = torch.tensor(rows, device=self.pool.device).unbind(1)
        return self.walk(tree, verified, limits_S, seeds_S, positions_S)

    def walk(
        self, tree: TokenTree, verified: Verified, limits_S: Tensor, seeds_S: Tensor, positions_S: Tensor
    ) -> Accepted:
        """The same from tensors; a cycle whose ranks disagree accepts nothing, not even the target's own token."""
        targets_SN = verified.targets_SN
        if tree.is_chain and self.pool.pdl is not None:
            return accept_by_kernel(
                tree, verified, limits_S, seeds_S, positions_S, decreed=self.synthetic_accept_length, pdl=self.pool.pdl
            )
        if self.synthetic_accept_length is not None:
            wanted_S = decreed_counts(seeds_S, positions_S, self.synthetic_accept_length)
            limits_S, targets_SN = limits_S.minimum(wanted_S), decreed_targets(tree, targets_SN)
            # Below the wanted depth the target speaks for itself again.
            targets_SN = torch.where(tree.depths_SN < limits_S[:, None], targets_SN, verified.targets_SN)
        accepted = accept(tree, targets_SN, limits_S)
        return accepted if verified.agreed is None else accepted._replace(counts_S=accepted.counts_S * verified.agreed)

    def commit(
        self,
        batch: Batch,
        residents: Sequence[Resident],
        tree: TokenTree,
        accepted: Accepted,
        counts: Sequence[int],
        features_TF: Tensor | None,
    ) -> tuple[Run, ...]:
        """Keep the accepted path: KV entries in position order, features for the next extend, tokens for the host."""
        tokens = accepted.tokens_SD.tolist()  # sync: the host gets the tokens
        depths = tree.depths_SN.tolist() if not tree.is_chain else None  # sync: proposed counts of trees
        for index, (row, resident) in enumerate(zip(batch.rows, residents, strict=True)):
            path = accepted.rows_SD[index, : counts[index]]
            if not tree.is_chain and counts[index] > 1:
                settle_path(self.pool, resident.run, row.root_position, path)
            emitted = accepted.tokens_SD[index, : counts[index]]
            if resident.history is not None:
                resident.history.push(emitted)
            if features_TF is not None:
                features = features_TF[index * tree.num_rows + path]
                _remember(resident, row, emitted, features)
                if self.page_features is not None:
                    self.page_features.keep(resident.run, row.root_position, features)
            resident.expects = (tokens[index][counts[index] - 1], row.root_position + counts[index])
            resident.follow(tokens[index][: counts[index]])
        return tuple(
            run_of(row, tokens[index][: counts[index]], depths[index] if depths else range(tree.num_rows))
            for index, row in enumerate(batch.rows)
        )

    def _verify_and_accept(
        self,
        batch: Batch,
        residents: Sequence[Resident],
        tree: TokenTree,
        sampling: Sampling | None,
        *,
        check: bool | None = None,
    ) -> tuple[Verified, Accepted]:
        if check is None:
            check = self.seat.compares(is_chain=tree.is_chain) and tree.num_rows > 1
        self.stamps.mark(Stage.VERIFY)
        verified = self.verify(batch, residents, tree, sampling, check=check)
        self.stamps.mark(Stage.ACCEPT)
        return verified, self.accept(batch, tree, verified)

    def _extend(self, residents: Sequence[Resident]) -> Opening:
        assert self.drafter is not None, "only a draft extends"
        self.stamps.mark(Stage.EXTEND)
        pending = [each.pending for each in residents if each.pending is not None]
        opening = self.drafter.extend(pending, [each.run for each in residents])
        for each in residents:
            each.pending = None
        return opening

    def drain_rings(self, residents: Sequence[Resident], *, full: int) -> None:
        """Extend requests of which so many positions wait although nothing is drafted: the draft stays warm."""
        over = [each for each in residents if each.pending and each.pending.tokens.shape[0] >= full]
        if self.drafter is not None and over:
            self._extend(over)


def _remember(resident: Resident, row: Row, tokens: Tensor, features: Tensor) -> None:
    """Leave emitted positions for the next extend."""
    if resident.pending is not None:
        resident.pending = resident.pending.followed_by(tokens, features)
        return
    resident.pending = Pending(start=row.root_position, tokens=tokens, features=features)


def run_of(row: Row, tokens: list[int], depths: Sequence[int]) -> Run:
    """A request's run; depths: of the rows that were verified."""
    within = [depth for depth in depths if 0 < depth <= row.depth_limit]
    return Run(request=row.request, tokens=tuple(tokens), proposed=len(within), depth=max(within, default=0))
