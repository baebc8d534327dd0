"""What each number of `slipstream plan` means; the same words in the terminal and in --json."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "model": "the target's shape that was counted",
        "hardware": "devices, their kind and the link between them, from data sheets",
        "all_reduce": "state of the all-reduce: tuned (NCCL's low-latency protocol), untuned, or one-shot (peers read)",
        "draft": "kind of draft whose cost is counted",
        "draft_bits": "bits of one of the draft's weights",
        "draft_step_bytes": "bytes of weights that one draft forward reads",
        "batch": "requests that decode together",
        "context": "tokens of each request that are in its cache",
        "weight_bytes": "bytes of all weights of the target",
        "fits": "whether weights and cache are within the memory of all devices, a tenth kept free",
        "calibrated": "whether the user's own times set the forward's level (and slope)",
        "acceptance": "where the accept length comes from: given, by position, or the usual one of such drafts",
        "verdict": "GAIN or LOSS when the 80% interval of the best speed-up lies beyond 1, else INCONCLUSIVE",
        "sentence": "the verdict in words",
        "rows": "one choice of steps and placement each",
        "steps": "K: draft forwards a cycle, = depth of the tree; 0 is plain decoding",
        "placement": "ranks that hold the draft: replicated = whole on each, tp N = cut over the first N",
        "topk": "branches a node; 1 is a chain",
        "verified": "rows that verify sees of each request: draft tokens and the root",
        "cycle_ms": "propose, verify, accept, extend; ms; K = 0: a plain step; with its 80% interval",
        "verify_ms": "the target's forward over the verified rows, ms",
        "draft_ms": "all draft forwards of a cycle, extend among them, ms",
        "host_ms": "scheduling, sampling, accepting: what the host adds to a cycle, ms",
        "ratio": "R = cycle / plain step at the same batch = break-even accept length; with its 80% interval",
        "accept_length": "tokens emitted a cycle, the target's own among them; plain decoding has 1; with its interval",
        "tokens_per_s": "batch x accept length / cycle, tokens a second over all requests; with its 80% interval",
        "speedup": "accept length / R: speed beside plain decoding; with its 80% interval",
        "best": "the row of the highest speed-up; plain decoding is a candidate",
        "limits": "what a cycle of the best row that drafts spends its time on",
        "part": "dense, experts, cache: reading weights and KV; all-reduce; fixed: launches and kernels of layers;"
        " compute: more than reading; draft; host; own: what calibration adds",
        "ms": "milliseconds of a cycle",
        "share": "part of the cycle",
        "bytes_read": "bytes that one device reads in verify, by part",
        "num_all_reduces": "all-reduces of one forward of the target",
        "all_reduce_us": "microseconds of one all-reduce of verify's size",
        "changes": "the same search with one thing changed; own times are left out on both sides",
        "change": "what is changed",
        "gain": "tokens a second of its best row over those of the best row as it is, minus 1; with its 80% interval",
        "best_steps": "K of its best row",
        "needed": "accept length that would make 1.0x, 1.2x and 1.5x at each K, on its best placement",
        "break_even": "accept length of 1.0x = R",
        "for_1_2x": "accept length of 1.2x",
        "for_1_5x": "accept length of 1.5x",
        "parameters": "free parameters of the cost model: fitted to published measurements, docs/planning.md",
        "interval": "every list of three numbers is middle, low and high of an 80% interval",
        "definitions": "this list",
        "example": "name of the worked case",
        "readings": "explanations of the case's numbers",
        "name": "what a reading or a measurement is called",
        "says": "what a reading holds to be the cause",
        "forward": "V(n) of a reading",
        "verify_curve": "V(n) of a reading, ms by rows n",
        "by_steps": "tokens a second of a reading by K",
        "published": "what was seen: tokens a second, or ms",
        "measurement": "what tells the readings apart",
        "rise_per_row_ms": "(V(6) - V(2)) / 4: what one more row costs once there are two, ms",
        "first_row_ms": "V(2) - V(1): what the first further row costs, ms",
    }
)


def undefined(value: Any) -> list[str]:
    """Names of fields of a JSON value that have no definition; keys that are data (parameters, steps) are not names."""
    return sorted(set(_names(value)) - set(DEFINITIONS))


DATA_KEYS = ("parameters", "bytes_read", "definitions", "verify_curve", "by_steps", "published")


def _names(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            if key not in DATA_KEYS:
                yield from _names(inner)
    elif isinstance(value, list):
        for each in value:
            yield from _names(each)
