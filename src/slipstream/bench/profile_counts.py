"""Bytes and FLOPs of each stage of a cycle, counted from the models that rank 0 holds: what a stage cannot do without.

Weights are read once a forward, keys and values once a request and forward, whatever the number of rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from slipstream.bench.latency_bytes import kv_bytes, weight_bytes
from slipstream.bench.spans import ACCEPT, EXTEND, VERIFY, step_label
from slipstream.config.speculation import Speculation
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.layers.attention import Attention
from slipstream.layers.linear import Linear
from slipstream.models.decoder import Decoder

SCORE_BYTES = 4  # logits are fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Of one stage on rank 0."""

    num_bytes: float
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSize:
    """What a cycle works on."""

    shape: Speculation
    batch: int
    context: float  # entries cached of each request
    accept_length: float  # positions that extend runs for each request


def count_stages(target: Decoder, draft: Eagle3Draft | None, size: CycleSize) -> Mapping[str, Count]:
    """Every stage that reads weights or logits; the host's time has no floor here."""
    rows = size.batch * size.shape.num_rows
    found = {
        VERIFY: Count(
            num_bytes=weight_bytes(target) + size.batch * kv_bytes(target, size.context),
            flops=_flops(target, rows, size.context),
        ),
        ACCEPT: Count(num_bytes=rows * target.head.shape[0] * SCORE_BYTES, flops=0.0),
    }
    return found if draft is None or size.shape.steps == 0 else {**_draft_stages(draft, size), **found}


def _draft_stages(draft: Eagle3Draft, size: CycleSize) -> dict[str, Count]:
    """Extend runs the layer behind what fuses the features; step 1 is the head alone, the others layer and head."""
    fc, head, all_weights = _matrix(draft, draft.fc), _matrix(draft, draft.head), weight_bytes(draft)
    entries = size.batch * kv_bytes(draft, size.context)
    extended, branches = size.batch * size.accept_length, size.batch * size.shape.topk
    whole, head_flops = _flops(draft, 1, size.context), 2 * math.prod(draft.head.shape)
    fc_flops = 2 * math.prod(draft.fc.shape)
    found = {
        EXTEND: Count(num_bytes=all_weights - head + entries, flops=extended * (whole - head_flops)),
        step_label(1): Count(num_bytes=head, flops=size.batch * head_flops),
    }
    for step in range(2, size.shape.steps + 1):
        count = Count(num_bytes=all_weights - fc + entries, flops=branches * (whole - fc_flops))
        found[step_label(step)] = count
    return found


def _matrix(draft: Eagle3Draft, layer: Linear) -> int:
    return math.prod(layer.shape) * draft.norm.weight.element_size()


def _flops(model: Decoder | Eagle3Draft, rows: float, context: float) -> float:
    """Two a weight and row, and four a row, key and query column."""
    weights = sum(math.prod(each.shape) for each in model.modules() if isinstance(each, Linear))
    columns = sum(each.num_heads * each.head_dim for each in model.modules() if isinstance(each, Attention))
    return rows * (2 * weights + 4 * context * columns)
