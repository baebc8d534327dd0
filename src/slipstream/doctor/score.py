"""Score a draft on evidence under one wiring: cross-entropy with the target, and what would be accepted.

The draft is unrolled several steps deep on the target's own greedy answer. As long as all drafted tokens were right,
a cycle would have been fed exactly these tokens, so the accept length walked here is the one of serving.

Shape letters: B sequences, T tokens of each, R = B * T packed rows, A slots of each sequence, S = B * A slots, C slots
that are compared, K steps, P likeliest tokens, V draft vocabulary, W target vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.doctor.evidence import Evidence
from slipstream.doctor.unroll import unroll_slots
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.train.accept import Walk, total, walk

STEPS = 4
FLOOR = 0.01  # share of a uniform distribution mixed into the draft's, so that what it cannot say costs finitely


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One wiring's numbers."""

    losses_C: NDArray[np.float64]  # nats: cross-entropy of each slot, the mean over its steps
    prompts_C: NDArray[np.int64]  # which conversation each slot belongs to
    walk: Walk

    @property
    def cross_entropy(self) -> float:
        """Nats a token, over all slots and steps."""
        return float(self.losses_C.mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Where the draft's answers are read: from the last token of each prompt on."""

    slots_BA: NDArray[np.int64]  # positions; where an answer is shorter than others, its last one again
    compared_S: NDArray[np.bool_]  # slots all of whose steps fall inside the answer

    @staticmethod
    def of(evidence: Evidence, steps: int) -> "Slots":
        """The slots of an evidence.

        Raises:
            ValueError: no answer is long enough.
        """
        found = evidence.conversations
        firsts_B, lengths_B = found.prompts_C.astype(np.int64) - 1, found.lengths_C
        wanted_BA = firsts_B[:, None] + np.arange(int((lengths_B - 1 - firsts_B).max()))
        compared_BA = wanted_BA + steps + 1 < lengths_B[:, None]
        if not compared_BA.any():
            raise ValueError(f"no answer of the target is longer than {steps + 1} tokens; give other prompts")
        slots_BA = np.minimum(wanted_BA, lengths_B[:, None] - 1)
        return Slots(slots_BA=slots_BA, compared_S=compared_BA.flatten())


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What a draft says at every slot, whatever its ids mean."""

    slots: Slots
    chosen_SK: Tensor  # draft ids
    probabilities_KCV: tuple[Tensor, ...]  # at the compared slots, step by step


@torch.no_grad()
def unrolled(evidence: Evidence, draft: Eagle3Draft, features_RF: Tensor, *, shift: int, steps: int = STEPS) -> Drafted:
    """Unroll the draft.

    shift: 1 where the draft at position p embeds token p + 1, 0 where it embeds p.

    Raises:
        ValueError: the answers are too short to unroll it on.
    """
    slots, device = Slots.of(evidence, steps), evidence.tokens_BT.device
    slots_BA, compared_S = torch.from_numpy(slots.slots_BA).to(device), torch.from_numpy(slots.compared_S).to(device)
    chosen, probabilities = [], []
    for normed_SD in unroll_slots(draft, evidence.tokens_BT, features_RF, slots_BA, shift=shift, steps=steps):
        logits_SV = draft.logits(normed_SD)
        chosen.append(logits_SV.argmax(-1))
        probabilities.append(logits_SV[compared_S].softmax(-1))
    return Drafted(slots=slots, chosen_SK=torch.stack(chosen, dim=-1), probabilities_KCV=tuple(probabilities))


@torch.no_grad()
def score(evidence: Evidence, drafted: Drafted, ids_V: Tensor, *, vocab_size: int) -> Score:
    """Compare with the target; ids_V: what the draft's ids mean."""
    slots, (num_sequences, num_tokens) = drafted.slots, evidence.tokens_BT.shape
    rows_S = (np.arange(num_sequences)[:, None] * num_tokens + slots.slots_BA).flatten()
    rows_C = torch.from_numpy(rows_S[slots.compared_S]).to(ids_V.device)
    losses = []
    for step, q_CV in enumerate(drafted.probabilities_KCV):
        said_C = rows_C + 1 + step
        q_CP = given_to(evidence.likeliest_RP[said_C], q_CV, ids_V, vocab_size=vocab_size)
        losses.append(-(evidence.probabilities_RP[said_C] * q_CP.log()).sum(-1))
    steps, num_slots = len(losses), slots.slots_BA.shape[1]
    tokens_BAK = ids_V[drafted.chosen_SK].view(num_sequences, num_slots, steps).cpu().numpy()
    return Score(
        losses_C=torch.stack(losses, dim=-1).mean(-1).double().cpu().numpy(),
        prompts_C=np.repeat(np.arange(num_sequences), num_slots)[slots.compared_S],
        walk=total(list(_walks(evidence, tokens_BAK)), steps),
    )


def given_to(wanted_CP: Tensor, q_CV: Tensor, ids_V: Tensor, *, vocab_size: int) -> Tensor:
    """What the draft's distribution gives to wanted target ids: [C, P], above zero."""
    draft_ids_W = torch.full((vocab_size,), -1, device=ids_V.device)
    draft_ids_W[ids_V] = torch.arange(len(ids_V), device=ids_V.device)
    if int((draft_ids_W >= 0).sum()) == len(ids_V):
        places_CP = draft_ids_W[wanted_CP]
        found_CP = q_CV.gather(1, places_CP.clamp(min=0)).masked_fill(places_CP < 0, 0.0)
    else:  # no map at all: several draft ids share a target id
        q_CW = torch.zeros(q_CV.shape[0], vocab_size, device=q_CV.device).index_add_(1, ids_V, q_CV)
        found_CP = q_CW.gather(1, wanted_CP)
    return (1 - FLOOR) * found_CP + FLOOR / vocab_size


def _walks(evidence: Evidence, tokens_BAK: Sequence[NDArray[np.int64]] | NDArray[np.int64]) -> Iterator[Walk]:
    """Walk each answer as serving would."""
    found = evidence.conversations
    for index, drafted_AK in enumerate(tokens_BAK):
        tokens, first = found.tokens(index), int(found.prompts_C[index]) - 1
        drafted_TK = np.zeros((len(tokens), drafted_AK.shape[1]), dtype=np.int64)
        drafted_TK[first:-1] = drafted_AK[: len(tokens) - 1 - first]
        yield walk(tokens, first + 1, drafted_TK)
