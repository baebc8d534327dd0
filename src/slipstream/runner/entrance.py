"""Run contexts in chunks, several requests in one forward, until each can take part in cycles.

A chunk's last position extends the draft with the known next token of the context, so what a chunk leaves in the caches
does not depend on where chunks end. The context's very last position waits for the token that follows it.

Shape letters: T packed positions, F feature width, S requests.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.attention.pool import KVPool, slot_run
from slipstream.attention.rows import attend_spans
from slipstream.attention.tree import TokenTree
from slipstream.draft.drafter import Drafter, Pending
from slipstream.flow.output import Run
from slipstream.flow.prefill import Chunk, Entry
from slipstream.models.decoder import Decoder, Hidden
from slipstream.runner.inputs import Resident
from slipstream.runner.keeping import PageFeatures
from slipstream.runner.masking import MaskMaker, MasksToCome
from slipstream.runner.prompts import joined, score_prompts
from slipstream.runner.roots import find_roots, last_rows


class Entrance:
    """The target's and the draft's prefill."""

    def __init__(
        self,
        target: Decoder,
        pool: KVPool,
        drafter: Drafter | None,
        masker: MaskMaker,
        page_features: PageFeatures | None,
    ) -> None:
        """page_features: None without a draft."""
        self.target, self.pool, self.drafter, self.masker = target, pool, drafter, masker
        self.page_features = page_features

    def open(self, entry: Entry) -> Resident:
        """A request that has a place; of its context what is cached counts as run.

        The draft's entry of the last cached position reads the token after it, which may differ from the one that
        followed when the page was written: it is made here, from the feature that the page kept (decision 12).
        """
        context_T = torch.tensor(entry.context, device=self.pool.device)
        run = slot_run(entry.span, self.pool.device)
        cached = entry.num_cached
        if cached and self.drafter is not None and self.page_features is not None:
            page = entry.span.pages[cached // self.page_features.page_size - 1]
            tokens, features = context_T[cached : cached + 1], self.page_features.of(page)
            last = Pending(start=cached - 1, tokens=tokens, features=features)
            self.drafter.extend([last], [run])
        resident = Resident(run=run, pending=None, expects=(0, 0), entry=entry, context_T=context_T)
        if (grammar := entry.request.params.grammar) is not None:
            answered = entry.context[len(entry.request.prompt) :]
            resident.automaton = self.masker.grammars.open(grammar, answered)
        return resident

    def run(self, chunks: Sequence[Chunk], residents: Sequence[Resident]) -> tuple[Run | None, ...]:
        """Run one forward; the drawn first tokens of contexts that end in it."""
        tokens_T = torch.cat(
            [_context(each)[chunk.start : chunk.stop] for chunk, each in zip(chunks, residents, strict=True)]
        )
        spans = [(chunk.start, chunk.stop) for chunk in chunks]
        ending = [place for place, chunk in enumerate(chunks) if chunk.stop == len(_context(residents[place]))]
        tree = last_rows([_entry(residents[place]) for place in ending], self.pool.device)
        masks = self.masker.start(tree, [residents[place].automaton for place in ending], self.pool.device)
        hidden = self.target(tokens_T, attend_spans(self.pool, [each.run for each in residents], spans))
        if self.drafter is not None and hidden.features_TF is not None:
            self._extend(self.drafter, chunks, residents, hidden.features_TF)
        firsts = score_prompts(self.target, chunks, [_entry(each) for each in residents], hidden.final_TD)
        for place, token in zip(ending, self._roots(hidden, chunks, residents, ending, tree, masks), strict=True):
            firsts[place] = joined(token, firsts[place])
        return tuple(firsts)

    def _extend(
        self, drafter: Drafter, chunks: Sequence[Chunk], residents: Sequence[Resident], features_TF: Tensor
    ) -> None:
        """Run the draft over the positions whose next token is known; the context's last one waits."""
        pending, runs, begin = [], [], 0
        for chunk, resident in zip(chunks, residents, strict=True):
            context_T, rows = _context(resident), features_TF[begin : begin + chunk.stop - chunk.start]
            if self.page_features is not None:
                self.page_features.keep(resident.run, chunk.start, rows)
            known = min(chunk.stop, len(context_T) - 1)
            if known > chunk.start:
                tokens = context_T[chunk.start + 1 : known + 1]
                pending.append(Pending(start=chunk.start, tokens=tokens, features=rows[: known - chunk.start]))
                runs.append(resident.run)
            if known < chunk.stop:
                resident.pending = Pending(start=known, tokens=context_T[:0], features=rows[known - chunk.start :])
            begin += chunk.stop - chunk.start
        if pending:
            drafter.extend(pending, runs)

    def _roots(
        self,
        hidden: Hidden,
        chunks: Sequence[Chunk],
        residents: Sequence[Resident],
        ending: Sequence[int],
        tree: TokenTree,
        masks: MasksToCome,
    ) -> list[Run | None]:
        """The token after each context that ended: as it was, or drawn, which is returned then."""
        if not ending:
            return []
        lengths = torch.tensor([chunk.stop - chunk.start for chunk in chunks])
        last_S = (lengths.cumsum(0) - 1)[list(ending)].to(hidden.final_TD.device)
        entries = [_entry(residents[place]) for place in ending]
        logits_SV = self.target.logits(hidden.final_TD[last_S])
        found = find_roots(entries, tree, logits_SV, self.target.shard, masks())
        roots = found.tokens_S.tolist()  # sync: the host decides whether a first token ends its answer
        runs: list[Run | None] = []
        for index, (place, entry) in enumerate(zip(ending, entries, strict=True)):
            residents[place].history = found.histories[index]
            residents[place].follow([roots[index]])
            _begin(residents[place], found.tokens_S[index : index + 1], roots[index], len(entry.context))
            run = Run(
                request=entry.request.id, tokens=(roots[index],), proposed=0, depth=0, logprobs=found.logprobs[index]
            )
            runs.append(run if entry.root is None else None)
        return runs


def _begin(resident: Resident, root_1: Tensor, root: int, position: int) -> None:
    """The context is through: the request's next cycle starts at its root."""
    if resident.pending is not None:
        pending = resident.pending
        resident.pending = Pending(start=pending.start, tokens=root_1, features=pending.features)
    resident.expects = (root, position)
    resident.entry, resident.context_T = None, None


def _entry(resident: Resident) -> Entry:
    assert resident.entry is not None, "its context is being run"
    return resident.entry


def _context(resident: Resident) -> Tensor:
    assert resident.context_T is not None, "its context is being run"
    return resident.context_T
