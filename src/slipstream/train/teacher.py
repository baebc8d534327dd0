"""What the target says at every supervised position, restricted to the draft's vocabulary.

A supervised position j is the one whose logits are the teacher: slot t of step i reads those at j = t + 1 + i, so one
list of positions serves every step.

Shape letters: B sequences, T tokens of each, R = B * T packed rows, S supervised positions, E target hidden,
W target vocabulary, V draft vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.train.batches import TrainBatch, to_device
from slipstream.train.loss import OUT_OF_VOCABULARY, SoftTargets
from slipstream.train.options import Mask

CHUNK_ELEMENTS = 1 << 27  # of fp32 target logits: 512 MiB
FIRST_OFFSET = {Mask.SERVING: -1, Mask.SPECULATORS: 0, Mask.EAGLE: 1}  # first supervised j - first answer token


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVocabulary:
    """Which target ids the draft can say, both ways, on the device."""

    ids_V: Tensor  # ascending target ids
    draft_ids_W: Tensor  # target id -> draft id, or OUT_OF_VOCABULARY

    @staticmethod
    def of(ids: NDArray[np.int64], *, target_vocab_size: int, device: torch.device) -> "DraftVocabulary":
        """Put a list of target ids on the device."""
        draft_ids_W = np.full(target_vocab_size, OUT_OF_VOCABULARY, dtype=np.int64)
        draft_ids_W[ids] = np.arange(len(ids))
        return DraftVocabulary(ids_V=to_device(ids, device), draft_ids_W=to_device(draft_ids_W, device))


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """Positions with a teacher, on the host and on the device."""

    flat_S: NDArray[np.int64]  # row of position j in the packed batch
    inside_S: NDArray[np.int64]  # j itself


def supervised(batch: TrainBatch, mask: Mask) -> Supervised:
    """The teacher positions of a batch under one alignment of the loss mask.

    Raises:
        ValueError: no position is supervised.
    """
    num_tokens = batch.tokens_BT.shape[1]
    first_B = np.maximum(batch.prompts_B + FIRST_OFFSET[mask], 1)[:, None]
    last_B = (batch.lengths_B - (2 if mask is Mask.SERVING else 1))[:, None]
    columns = np.arange(num_tokens)[None]
    row_S, inside_S = np.nonzero((columns >= first_B) & (columns <= last_B))
    if not len(inside_S):
        raise ValueError("no token of this batch is supervised; are the answers empty, or their prompt lengths wrong?")
    return Supervised(flat_S=row_S * num_tokens + inside_S, inside_S=inside_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The target's distribution at supervised positions; shared by all steps."""

    positions: Supervised
    probabilities_SV: Tensor
    choices_S: Tensor  # draft id of the target's top choice, or OUT_OF_VOCABULARY
    flat_S: Tensor

    def at_step(self, step: int) -> tuple[Tensor, SoftTargets]:
        """Packed slots [R'] of a step, and their targets: slot j - 1 - step where that is inside the sequence."""
        rows = np.nonzero(self.positions.inside_S >= 1 + step)[0]
        rows_R = to_device(rows, self.flat_S.device)
        slots_R = to_device(self.positions.flat_S[rows] - 1 - step, self.flat_S.device)
        weights_R = (self.choices_S[rows_R] != OUT_OF_VOCABULARY).float()
        targets = SoftTargets(
            probabilities_SV=self.probabilities_SV, choices_S=self.choices_S, rows_R=rows_R, weights_R=weights_R
        )
        return slots_R, targets


@torch.no_grad()
def teach(
    final_RE: Tensor, head_WE: Tensor, positions: Supervised, vocabulary: DraftVocabulary, *, temperature: float = 1.0
) -> Teacher:
    """Read the target's head at supervised positions, a chunk at a time."""
    flat_S = to_device(positions.flat_S, final_RE.device)
    kept = torch.float32 if final_RE.device.type == "cpu" else torch.bfloat16
    shape = (flat_S.shape[0], vocabulary.ids_V.shape[0])
    probabilities_SV = torch.empty(shape, dtype=kept, device=final_RE.device)
    choices_S = torch.empty_like(flat_S)
    head, chunk = head_WE.float(), max(1, CHUNK_ELEMENTS // head_WE.shape[0])
    for start in range(0, flat_S.shape[0], chunk):
        rows = slice(start, start + chunk)
        logits_NW = final_RE[flat_S[rows]].float() @ head.T
        choices_S[rows] = vocabulary.draft_ids_W[logits_NW.argmax(-1)]
        probabilities_SV[rows] = (logits_NW[:, vocabulary.ids_V] / temperature).softmax(-1).to(kept)
    return Teacher(positions=positions, probabilities_SV=probabilities_SV, choices_S=choices_S, flat_S=flat_S)
