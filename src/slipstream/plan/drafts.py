"""Drafts as a planner sees them: what one draft forward reads, and how many of them a cycle takes."""

import re
from dataclasses import dataclass
from enum import StrEnum

from slipstream.plan.models import BF16, Shape, from_sizes

REDUCED_VOCAB = 32_000  # an EAGLE-3 head scores the commonest tokens only
BLOCK_LAYERS = 5  # of a drafter that fills a whole block in one forward
MAX_KV_HEADS = 8


class DraftKind(StrEnum):
    EAGLE3 = "eagle-3"
    EAGLE = "eagle"  # EAGLE-1 and -2: one layer, the target's whole head
    MTP = "mtp"  # the target's own next-token layer
    BLOCK = "block"  # all draft tokens in one forward
    MODEL = "draft model"  # a small language model
    LIGHT = "light"  # MLP or LSTM speculators
    FREE = "free"  # n-grams, saved outputs: no forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a draft forward costs: parameters read, layers launched."""

    kind: DraftKind
    layers: int
    hidden: int
    body: float  # parameters of its layers read by one forward of one row
    head: float  # parameters of its head
    bits: float = BF16

    @property
    def step_bytes(self) -> float:
        """Bytes that one draft forward reads."""
        return (self.body + self.head) * self.bits / 8

    def forwards(self, steps: int) -> int:
        """Draft forwards a cycle: extend is the first of them."""
        if self.kind is DraftKind.FREE or steps == 0:
            return 0
        return 1 if self.kind is DraftKind.BLOCK else steps


def draft_kind(text: str) -> DraftKind:
    """Read a kind from a draft's name; a name that says nothing is an EAGLE-3 head, the commonest."""
    words = text.lower()
    for pattern, kind in (
        (r"lstm|mlp|medusa|hydra", DraftKind.LIGHT),
        (r"oracle|n-?gram|prompt lookup|suffix", DraftKind.FREE),
        (r"dspark|dfly|dflash|block|diffusion", DraftKind.BLOCK),
        (r"\bmtp\b|nextn", DraftKind.MTP),
        (r"eagle[-_ ]?3|eagle3", DraftKind.EAGLE3),
        (r"eagle[-_ ]?[12]?\b", DraftKind.EAGLE),
        (r"draft model|-\d+(\.\d+)?b\b", DraftKind.MODEL),
    ):
        if re.search(pattern, words):
            return kind
    return DraftKind.EAGLE3


def draft_for(target: Shape, text: str, *, bits: float | None = None) -> Draft:
    """The draft of a kind that fits a target; "FP8", "INT4" or "W4" in the text says its bits."""
    kind = draft_kind(text)
    bits = bits or draft_bits(text) or (target.bits if kind is DraftKind.MTP else BF16)
    return make_draft(target, kind, bits=bits, text=text)


def make_draft(target: Shape, kind: DraftKind, *, bits: float, text: str = "") -> Draft:
    """Count what one forward reads."""
    hidden, layer = float(target.hidden), _layer(target)
    head = min(target.vocab, REDUCED_VOCAB) * hidden
    layers, body = 1, layer
    if kind is DraftKind.EAGLE:
        head, body = target.head, layer + 2 * hidden**2
    elif kind is DraftKind.MTP:
        head = target.head
        chosen = target.experts_per_token * target.expert + target.shared if target.is_moe else 0.0
        mlp = chosen or 3 * hidden * target.ffn
        body = target.attention + target.replicated + mlp + 2 * hidden**2
    elif kind is DraftKind.BLOCK:
        layers, body, head = BLOCK_LAYERS, BLOCK_LAYERS * layer, target.head
    elif kind is DraftKind.MODEL:
        small = from_sizes("draft", _billions(text), None)
        layers, body, head = small.layers, small.active - small.head, small.head
    elif kind is DraftKind.LIGHT:
        body = 2 * hidden**2
    elif kind is DraftKind.FREE:
        layers, body, head = 0, 0.0, 0.0
    return Draft(kind=kind, layers=layers, hidden=target.hidden, body=body, head=head, bits=bits)


def draft_bits(text: str) -> float | None:
    """Bits that a draft's name states."""
    if re.search(r"fp8|int8|w8", text, re.IGNORECASE):
        return 8.0
    if re.search(r"fp4|int4|w4\b|awq", text, re.IGNORECASE):
        return 4.5
    return None


def _layer(target: Shape) -> float:
    """One dense decoder layer as wide as the target, its attention fed by embedding and feature together."""
    hidden = float(target.hidden)
    attention = hidden * 128 * (3 * round(hidden / 128) + 2 * 2 * MAX_KV_HEADS)
    return attention + 3 * hidden * target.ffn


def _billions(text: str) -> float:
    found = re.search(r"(\d+(?:\.\d+)?) ?b\b", text, re.IGNORECASE)
    return float(found[1]) if found else 1.0
