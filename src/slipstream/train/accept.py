"""Walk held-out greedy answers as serving would, and count what the draft gets accepted.

One batched pass drafts K tokens from *every* slot; a cursor on the host then jumps from cycle to cycle. That equals a
sequential decode, because extend rewrites a cycle's drafted keys from true features before the next one.

Shape letters: B sequences, T tokens of each, K steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.models.decoder import Decoder
from slipstream.train.batches import epoch_plan, load_batch
from slipstream.train.conversations import Conversations, until_loop
from slipstream.train.objective import run_target
from slipstream.train.teacher import DraftVocabulary
from slipstream.train.unroll import autocast, unroll_drafted


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Counts over one or more answers."""

    cycles: int
    emitted: int
    accepted_K: tuple[int, ...]  # cycles that accepted at least k + 1 drafted tokens
    proposed_K: tuple[int, ...]  # cycles in which position k could still have been accepted

    @property
    def accept_length(self) -> float:
        """Emitted tokens a cycle, the target's own included."""
        return self.emitted / max(1, self.cycles)

    @property
    def by_position(self) -> list[float]:
        """P(position i accepted | positions before it accepted)."""
        return [kept / max(1, tried) for kept, tried in zip(self.accepted_K, self.proposed_K, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Accept length of one held-out set."""

    whole: Walk
    until_loop: Walk  # answers cut at their first repeated 16-gram
    loop_rate: float


def measure(
    draft: Eagle3Draft,
    target: Decoder,
    conversations: Conversations,
    vocabulary: DraftVocabulary,
    *,
    steps: int,
    batch_tokens: int,
) -> Measured:
    """Accept length over conversations whose answers are the target's greedy ones."""
    whole, cut, loops = [], [], 0
    for rows in epoch_plan(conversations.lengths_C, batch_tokens=batch_tokens, seed=0, epoch=0):
        drafted = draft_everywhere(draft, target, conversations, rows, vocabulary, steps=steps)
        for index, row in enumerate(rows):
            tokens, num_prompt = conversations.tokens(int(row)), int(conversations.prompts_C[row])
            end = num_prompt + until_loop(conversations.answer(int(row)))
            loops += end < len(tokens)
            whole.append(walk(tokens, num_prompt, drafted[index]))
            cut.append(walk(tokens[:end], num_prompt, drafted[index]))
    return Measured(whole=total(whole, steps), until_loop=total(cut, steps), loop_rate=loops / max(1, len(whole)))


@torch.no_grad()
def draft_everywhere(
    draft: Eagle3Draft,
    target: Decoder,
    conversations: Conversations,
    rows: NDArray[np.int64],
    vocabulary: DraftVocabulary,
    *,
    steps: int,
) -> NDArray[np.int64]:
    """Tokens the draft would propose from every slot: [B, T, K]."""
    device = vocabulary.ids_V.device
    tokens_BT = load_batch(conversations, rows, device=device).tokens_BT
    features_RF = run_target(target, tokens_BT).features_TF
    assert features_RF is not None, "the target captures what the draft's config names"
    with autocast(device):
        unrolled = unroll_drafted(draft, tokens_BT, features_RF.float(), steps, ids_V=vocabulary.ids_V)
        drafted = torch.stack(list(unrolled), dim=-1)
    return drafted.view(*tokens_BT.shape, steps).cpu().numpy()


def walk(tokens: NDArray[np.int32], num_prompt: int, drafted_TK: NDArray[np.int64]) -> Walk:
    """Walk one answer; its first token is the prefill's. `cursor` is the last token emitted."""
    steps = drafted_TK.shape[1]
    cycles, emitted, cursor, last = 0, 0, num_prompt, len(tokens) - 1
    accepted_K, proposed_K = np.zeros(steps, dtype=int), np.zeros(steps, dtype=int)
    while cursor < last:
        usable = min(steps, last - cursor)
        hits = drafted_TK[cursor - 1, :usable] == tokens[cursor + 1 : cursor + 1 + usable]
        accepted = int(hits.cumprod().sum())
        accepted_K[:accepted] += 1
        proposed_K[: min(accepted + 1, usable)] += 1
        jump = min(accepted + 1, last - cursor)
        cycles, emitted, cursor = cycles + 1, emitted + jump, cursor + jump
    return Walk(cycles=cycles, emitted=emitted, accepted_K=tuple(accepted_K), proposed_K=tuple(proposed_K))


def total(walks: Sequence[Walk], steps: int) -> Walk:
    """Sum counts over answers: accept length over a set is sum of emitted / sum of cycles."""
    zero = np.zeros(steps, dtype=int)
    return Walk(
        cycles=sum(one.cycles for one in walks),
        emitted=sum(one.emitted for one in walks),
        accepted_K=tuple(int(n) for n in sum((np.asarray(one.accepted_K) for one in walks), zero)),
        proposed_K=tuple(int(n) for n in sum((np.asarray(one.proposed_K) for one in walks), zero)),
    )
