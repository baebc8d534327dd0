"""The bytes that a cycle cannot do without, counted from the models a rank holds: the floor of its time.

Every weight but the embedding table is read once by a forward, the keys and values of a request once, whatever the
number of rows that are verified.
"""

import math
from dataclasses import dataclass

from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.layers.attention import Attention
from slipstream.layers.linear import Linear
from slipstream.layers.norm import RMSNorm
from slipstream.models.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleBytes:
    """What rank 0 must read in one cycle."""

    target_weights: int
    target_kv: int
    draft_weights: int = 0
    draft_kv: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.target_weights + self.target_kv + self.draft_weights + self.draft_kv


def cycle_bytes(
    target: Decoder, draft: Eagle3Draft | None, *, steps: int, batch: int, num_entries: float
) -> CycleBytes:
    """Count a cycle; draft None: this rank holds none, or nothing is drafted. num_entries: cached of each request."""
    weights, entries = weight_bytes(target), round(batch * kv_bytes(target, num_entries))
    if draft is None or steps == 0:
        return CycleBytes(target_weights=weights, target_kv=entries)
    fused_once = (steps - 1) * math.prod(draft.fc.shape) * draft.norm.weight.element_size()
    return CycleBytes(
        target_weights=weights,
        target_kv=entries,
        draft_weights=steps * weight_bytes(draft) - fused_once,
        draft_kv=round(steps * batch * kv_bytes(draft, num_entries)),
    )


def weight_bytes(model: Decoder | Eagle3Draft) -> int:
    """Weights that a forward of few rows reads: all but the embedding table, of which it reads some rows."""
    itemsize = model.norm.weight.element_size()
    linear = [each for each in model.modules() if isinstance(each, Linear)]
    matrices = sum(math.prod(each.shape) + (each.shape[0] if each.bias is not None else 0) for each in linear)
    norms = sum(each.weight.numel() for each in model.modules() if isinstance(each, RMSNorm))
    return (matrices + norms) * itemsize


def kv_bytes(model: Decoder | Eagle3Draft, num_entries: float) -> float:
    """Keys and values of one request with so many entries; a windowed layer reads its window."""
    itemsize = model.norm.weight.element_size()
    layers = [each for each in model.modules() if isinstance(each, Attention)]
    return sum(2 * each.num_kv_heads * each.head_dim * itemsize * _seen(each, num_entries) for each in layers)


def _seen(layer: Attention, num_entries: float) -> float:
    return num_entries if layer.window is None else min(num_entries, layer.window)
