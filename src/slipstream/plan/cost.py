"""The time of a forward and of a cycle: bytes over bandwidth, all-reduces, fixed costs a layer, a step at n > 1.

    V(n) = layers x (fixed + step[n > 1]) + dense bytes / (eta_d BW) + distinct experts / (eta_e BW)
           + KV / (eta_kv BW) + 2 layers x all-reduce(n), or the compute of n rows where that takes longer
    T(K) = V(K + 1) + K D + host;   D = draft bytes / (eta_d BW) + 2 all-reduces + launch

n counts rows over all requests. Distinct experts for q rows of each of B requests: E (1 - (1 - k/E)^m) with
m = q^(1 - rho) B^(1 - rho_batch). Exponents of 1 are rows that choose independently (MoESD, arXiv 2505.19645, section
3); neighbours in one text resemble each other and choose like fewer rows, requests do so less.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from slipstream.plan.drafts import Draft
from slipstream.plan.hardware import Machine
from slipstream.plan.models import BF16, Shape

SHARP = 4  # how sharply memory time turns into compute time
TILE = 16  # rows that a tensor core takes at once, wanted or not
MS = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """What no data sheet says; fitted to published measurements (plan/fit.py) or to one's own (plan/calibrate.py)."""

    eta_d: float = 0.74  # share of memory bandwidth that dense weights reach
    eta_e: float = 0.45  # the same for routed experts
    eta_c: float = 0.5  # share of the tensor rate
    layer_us: float = 14.0  # of a layer beside its bytes: launches, norms, attention
    latent_us: float = 20.0  # of a layer of latent attention beside that: more, smaller kernels
    moe_us: float = 15.0  # of a mixture's layer beside that: router, top-k, sorting
    step_us: float = 4.0  # of a layer more as soon as there are two rows: other kernels
    moe_step_us: float = 12.0  # the same of a mixture's layer
    verify_us: float = 2.0  # of a layer more when rows are verified: masks, less well captured graphs
    rho: float = 0.35  # how alike rows of one request choose experts: n of them like n^(1 - rho) independent ones
    rho_batch: float = 0.15  # the same of rows of different requests
    wire: float = 1.0  # all-reduce latency beside the tables'
    draft_us: float = 180.0  # of a draft forward beside its bytes and all-reduces
    tree_us: float = 200.0  # of a draft forward more where it branches: sorting, building the tree
    host_us: float = 300.0  # of a plain step: scheduling, sampling
    cycle_us: float = 700.0  # of a cycle more than of a plain step: accepting, preparing, no overlap
    row_us: float = 8.0  # of each request in a cycle or step


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a user's own V(n) says beside the free parameters: a constant, and how steeply further rows cost."""

    offset_ms: float = 0.0
    growth: float = 1.0


AS_PUBLISHED = Own()
NAMES = tuple(each.name for each in fields(Free))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a forward has to do."""

    requests: int
    rows: int  # of each request; 1 = plain decoding
    context: int = 0
    topk: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Milliseconds of a forward by what they are spent on."""

    dense_ms: float
    experts_ms: float
    cache_ms: float
    all_reduce_ms: float
    fixed_ms: float
    compute_ms: float  # more than memory took
    own_ms: float  # what a calibration adds
    num_all_reduces: int
    bytes_read: Mapping[str, float] = field(default_factory=dict)  # by part, one device

    @property
    def ms(self) -> float:
        """The whole forward."""
        memory = self.dense_ms + self.experts_ms + self.cache_ms
        return memory + self.all_reduce_ms + self.fixed_ms + self.compute_ms + self.own_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where the draft lives: whole on every rank, or cut over the first `ranks`."""

    ranks: int = 1
    replicated: bool = True

    def __str__(self) -> str:
        return "replicated" if self.replicated else f"tp {self.ranks}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """Milliseconds of a cycle by stage; plain decoding has only verify and host."""

    verify: Parts
    draft_ms: float
    draft_all_reduce_ms: float
    host_ms: float

    @property
    def ms(self) -> float:
        """The whole cycle."""
        return self.verify.ms + self.draft_ms + self.host_ms


def distinct_experts(shape: Shape, load: Load, free: Free) -> float:
    """Routed experts of one layer that the rows of a forward read."""
    if not shape.experts:
        return 0.0
    independent = load.rows ** (1 - free.rho) * load.requests ** (1 - free.rho_batch)
    return shape.experts * (1 - (1 - shape.experts_per_token / shape.experts) ** independent)


def forward(shape: Shape, machine: Machine, load: Load, free: Free, own: Own = AS_PUBLISHED) -> Parts:
    """The target's forward over `requests * rows` rows.

    A calibration leaves V(1) + offset and multiplies what further rows add: V(1) + offset + growth (V(n) - V(1)).
    """
    parts = bare_forward(shape, machine, load, free)
    if own == AS_PUBLISHED:
        return parts
    one = bare_forward(shape, machine, replace(load, requests=1, rows=1), free)
    return replace(parts, own_ms=own.offset_ms + (own.growth - 1) * (parts.ms - one.ms))


def bare_forward(shape: Shape, machine: Machine, load: Load, free: Free) -> Parts:
    """The forward as the free parameters have it."""
    rows, size = load.requests * load.rows, machine.count
    read = forward_bytes(shape, machine, load, free)
    rate = machine.device.bytes_per_s
    dense_ms = (read["attention"] + read["dense"] + read["shared"] + read["router"] + read["head"]) / rate / free.eta_d
    experts_ms = read["experts"] / rate / free.eta_e
    cache_ms = read["cache"] / rate / free.eta_d
    memory_ms = (dense_ms + experts_ms + cache_ms) * MS
    compute_ms = compute_time_ms(shape, machine, load, free)
    both = (memory_ms**SHARP + compute_ms**SHARP) ** (1 / SHARP)
    us = shape.layers * free.layer_us + shape.moe_layers * free.moe_us
    us += 0.0 if shape.kv_splits else shape.layers * free.latent_us
    if rows > 1:
        us += shape.layers * free.step_us + shape.moe_layers * free.moe_step_us
    if load.rows > 1:
        us += shape.layers * free.verify_us
    num = 2 * shape.layers if size > 1 else 0
    wire_us = num * free.wire * machine.all_reduce_us(rows * shape.hidden * BF16 / 8, size)
    return Parts(
        dense_ms=dense_ms * MS,
        experts_ms=experts_ms * MS,
        cache_ms=cache_ms * MS,
        all_reduce_ms=wire_us / 1e3,
        fixed_ms=us / 1e3,
        compute_ms=both - memory_ms,
        own_ms=0.0,
        num_all_reduces=num,
        bytes_read=read,
    )


def forward_bytes(shape: Shape, machine: Machine, load: Load, free: Free) -> dict[str, float]:
    """Bytes that one device reads, by part."""
    size = machine.count
    width = shape.bits / 8
    split = shape.layers * shape.attention / size
    kv = load.requests * load.context * shape.kv_per_token * shape.kv_bits / 8
    router = shape.hidden * shape.experts * shape.moe_layers
    return {
        "attention": (split + shape.layers * shape.replicated - router) * width,
        "router": router * width,
        "dense": shape.dense / size * width,
        "shared": shape.moe_layers * shape.shared / size * width,
        "experts": shape.moe_layers * distinct_experts(shape, load, free) * shape.expert / size * shape.routed_bits / 8,
        "head": shape.head / size * BF16 / 8,
        "cache": kv / size if shape.kv_splits else kv,
    }


def compute_time_ms(shape: Shape, machine: Machine, load: Load, free: Free) -> float:
    """Milliseconds of multiplying; experts that get few rows are padded to a tile."""
    rate, rows = free.eta_c * machine.count, load.requests * load.rows
    others = shape.active - shape.moe_layers * shape.experts_per_token * shape.expert
    total = 2 * others * rows / (rate * machine.device.flops(shape.bits))
    if shape.is_moe:
        used = distinct_experts(shape, load, free)
        padded = max(rows * shape.experts_per_token, min(used * TILE, rows * shape.experts_per_token * TILE))
        total += 2 * shape.moe_layers * shape.expert * padded / (rate * machine.device.flops(shape.routed_bits))
    return total * MS


def draft_forward_ms(draft: Draft, machine: Machine, load: Load, placed: Placed, free: Free) -> tuple[float, float]:
    """Milliseconds of one draft forward, and how many of them are all-reduces."""
    ranks = 1 if placed.replicated else min(placed.ranks, machine.count)
    rows = load.requests * load.topk
    bytes_ms = draft.step_bytes / ranks / (machine.device.bytes_per_s * free.eta_d) * MS
    compute = 2 * (draft.body + draft.head) * rows / (ranks * free.eta_c * machine.device.flops_16) * MS
    wire_us = 2 * draft.layers * free.wire * machine.all_reduce_us(rows * draft.hidden * BF16 / 8, ranks)
    us = free.draft_us + max(draft.layers - 1, 0) * free.layer_us + (free.tree_us if load.topk > 1 else 0.0)
    ms = (bytes_ms**SHARP + compute**SHARP) ** (1 / SHARP) + (wire_us + us) / 1e3
    return ms, wire_us / 1e3


def plain_step(
    shape: Shape, machine: Machine, free: Free, *, requests: int, context: int = 0, own: Own = AS_PUBLISHED
) -> Cycle:
    """One step of plain decoding."""
    parts = forward(shape, machine, Load(requests=requests, rows=1, context=context), free, own)
    host_ms = (free.host_us + free.row_us * requests) / 1e3
    return Cycle(verify=parts, draft_ms=0.0, draft_all_reduce_ms=0.0, host_ms=host_ms)


def cycle(
    shape: Shape,
    machine: Machine,
    draft: Draft,
    load: Load,
    placed: Placed,
    free: Free,
    *,
    steps: int,
    own: Own = AS_PUBLISHED,
) -> Cycle:
    """One cycle: verify `load.rows` rows of each request, draft `steps` deep; extend is the first draft forward."""
    parts = forward(shape, machine, load, free, own)
    each, wire = draft_forward_ms(draft, machine, load, placed, free)
    count = draft.forwards(steps)
    host_ms = (free.host_us + free.cycle_us + free.row_us * load.requests) / 1e3
    told = tell_ms(machine, placed, free) if count else 0.0
    return Cycle(verify=parts, draft_ms=count * each + told, draft_all_reduce_ms=count * wire + told, host_ms=host_ms)


def tell_ms(machine: Machine, placed: Placed, free: Free) -> float:
    """Milliseconds of one small broadcast of the tree to ranks that hold no draft; as long as a small all-reduce."""
    if placed.replicated or placed.ranks == machine.count:
        return 0.0
    return free.wire * machine.all_reduce_us(64.0, machine.count) / 1e3
