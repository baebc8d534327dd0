"""What every number that a measuring command prints means: one sentence a name, the same in tables and in JSON.

A field whose keys are data (tasks, steps) has its own name defined and stands for all that lies below it.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

_SETTINGS = {
    "bench": "which measurement the row is of",
    "model": "the target as it was named: a checkpoint, or a shape with random weights",
    "draft": "the draft as it was named; null for none",
    "tp": "ranks that the target is cut over",
    "draft_placement": "ranks that the draft is cut over (`tp N`), or `replicated`; null without a draft",
    "dtype": "number format of the target's weights and KV entries",
    "weights": "`dummy` (random) or of a `checkpoint`",
    "page_size": "KV entries a page",
    "prefill_chunk": "tokens of prompts that one forward runs",
    "prefix_cache": "whether prompts that begin alike share pages",
    "draft_max_len": "tokens of context beyond which nothing is drafted; null for no limit",
    "feature_ring": "emitted positions that may wait for the draft",
    "overlap": "whether the host's work on a cycle runs beside the next one",
    "device": "kind of device that the ranks run on",
    "graphs": "whether cycles are replayed as captured CUDA graphs where a batch allows it",
    "run_ahead": "whether the next captured cycle is launched before the host has read the last one's tokens",
    "all_reduce": "the way that all-reduces of each message size take, as bytes:way; none on one rank",
    "nccl": "NCCL's version and every NCCL_* variable that was set",
    "settings": "what must be equal for two times to be compared",
    "fingerprint": "hash of the settings; a speed-up needs the same one on both sides",
    "slipstream": "version of slipstream",
    "torch": "version of torch",
    "python": "version of Python",
    "hardware": "name of the GPU or the processor",
    "threads": "threads that torch computes with on the host",
    "date": "when the row was made, UTC",
    "steps": "K: draft forwards a cycle, = depth of the tree; 0 is plain decoding",
    "topk": "branches a node; 1 is a chain",
    "draft_tokens": "nodes verified a cycle, without the root",
    "sglang_num_draft_tokens": "SGLang's name: draft tokens with the root, so one more",
    "vllm_num_speculative_tokens": "vLLM's name: draft tokens of a chain without the root; null for a tree",
    "batch": "requests that decode together",
    "context": "tokens of each request's prompt; a few more are cached by the time cycles are timed",
    "max_batch": "most requests that run together",
    "prompts": "where the prompts came from",
    "num_prompts": "prompts that were answered",
    "temperature": "0 is greedy",
    "max_tokens": "longest answer, tokens",
    "seed": "prompt i is sampled with seed + i",
}
_LATENCY = {
    "cycle_ms": "median wall time of a cycle (propose, verify, accept, extend), prefill excluded, ms; K = 0: a step",
    "cycle_p90_ms": "the same, 90th percentile",
    "cycle_spread_ms": "the same, distance between the quartiles",
    "num_cycles": "cycles that were timed",
    "plain_step_ms": "median wall time of a plain step (K = 0, no draft loaded) of the same run, batch and context, ms",
    "decreed_accept_length": "tokens emitted a cycle, by decree: cost is measured apart from acceptance; 1 is plain",
    "target_weight_bytes": "weights of the target that rank 0 reads in a cycle: all but the embedding table, once",
    "target_kv_bytes": "the target's KV entries that rank 0 reads in a cycle: once for each request",
    "draft_weight_bytes": "weights of the draft that rank 0 reads in a cycle: its layer and head each step, fc once",
    "draft_kv_bytes": "the draft's KV entries that rank 0 reads in a cycle: once for each request and step",
    "cycle_bytes": "bytes that rank 0 must read in a cycle: target weights and KV once, draft weights and KV each step",
    "tb_per_s": "cycle_bytes over cycle_ms, TB/s of each rank's memory",
    "floor_ms": "cycle_bytes over the measured read rate: no cycle can be shorter",
    "share_of_floor": "floor_ms over cycle_ms: 1 is as fast as the memory allows",
    "cycle_ratio": "R: cycle_ms over plain_step_ms at the same batch and context",
    "break_even_accept_length": "the accept length at which speculation is as fast as plain decoding; equals R",
    "read_tb_per_s": "best rate at which rank 0's device read 1 GiB (128 MiB on a CPU), measured first, TB/s",
    "copy_tb_per_s": "rate of copying as much, bytes read and written together, measured first, TB/s",
    "baseline_cycle_ms": "cycle_ms of the same shape, K, batch and context in the baseline file",
    "speedup_over_baseline": "baseline_cycle_ms over cycle_ms, equal settings on both sides",
}
_ACCEPTANCE = {
    "num_answers": "answers that were counted",
    "cycles": "cycles of all answers",
    "proposed": "drafted tokens that were verified",
    "accepted": "of those, kept",
    "emitted": "accepted + 1 a cycle: the target's own token; the prefill's token is no cycle's",
    "not_drafted": "cycles in which nothing was drafted because the context is beyond the draft's length",
    "accept_length": "emitted / cycles over all answers, the target's own token (bonus) included; plain is 1",
    "accept_length_mean_of_answers": "mean over answers of each one's emitted / cycles; short ones weigh as long ones",
    "accept_rate": "accepted / proposed, over all cycles",
    "acceptance_by_position": "P(position i accepted, given that all before it were), i from 1",
    "acceptance_up_to_position": "P(positions 1 to i all accepted), i from 1: vLLM's per-position acceptance rate",
    "histogram": "how many cycles accepted 0, 1, 2, ... drafted tokens",
    "accept_length_by_task": "accept length of each task's answers",
    "accept_length_by_steps": "accept length forecast for chains of 1, 2, ... steps, from its acceptance by position",
    "loop_rate": "share of answers that hold a repeated 16-gram of token ids",
    "accept_length_until_loop": "accept length of the answers cut at their first repeated 16-gram",
}
_PAIRED = {
    "draft_a": "the first draft of a pair",
    "draft_b": "the second draft of a pair",
    "num_pairs": "prompts that both drafts answered with the same seed",
    "difference": "mean over prompts of accept length with draft B less that with draft A",
    "difference_low": "lower end of the difference's 95% interval, bootstrapped over prompts",
    "difference_high": "upper end of the difference's 95% interval, bootstrapped over prompts",
    "num_better": "prompts on which draft B has the larger accept length",
    "num_worse": "prompts on which draft B has the smaller accept length",
    "verdict": "what the interval allows to say; INCONCLUSIVE where it straddles 0",
}
_TUNE = {
    "predicted_tokens_per_s": "batch x predicted accept length / measured cycle_ms, before confirmation",
    "predicted_accept_length": "accept length of this shape, read from real runs of deeper or equal shapes",
    "confirmed_rounds": "real runs, each on a part of the prompts; setups of like speed get more",
    "confirmed_tokens_per_s": "tokens a second of a real run on the prompts, prefill excluded, median of the rounds",
    "confirmed_spread_tokens_per_s": "the same, distance between the slowest and fastest round, each of other prompts",
    "confirmed_accept_length": "emitted / cycles of the real run",
    "gain_over_plain": "confirmed tokens a second over plain decoding's in the same round, mean of the prompts' parts",
    "seconds": "wall time that this took",
    "noise": "relative distance of two plain runs in a round, median; gains up to it are ties, which plain wins",
    "chosen": "whether tune chose this shape for its batch",
    "num_shapes": "shapes that were candidates",
    "num_timed": "shapes whose cycle was timed",
    "placement": "ranks that hold the draft",
}
DEFINITIONS: Mapping[str, str] = MappingProxyType({**_SETTINGS, **_LATENCY, **_ACCEPTANCE, **_PAIRED, **_TUNE})


def undefined(row: Mapping[str, Any], definitions: Mapping[str, str] = DEFINITIONS) -> list[str]:
    """Leaf fields of a JSON row that have no definition, as dotted names; objects, and objects in lists, are none."""
    missing: list[str] = []
    for name, value in row.items():
        rows = [value] if isinstance(value, Mapping) else _rows_in(value)
        if not rows and name not in definitions:
            missing.append(name)
        if not (isinstance(value, Mapping) and name in definitions):
            missing += [f"{name}.{each}" for below in rows for each in undefined(below, definitions)]
    return list(dict.fromkeys(missing))


def _rows_in(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list | tuple) else []


def define(names: Iterable[str], definitions: Mapping[str, str] = DEFINITIONS) -> list[str]:
    """Lines `name = meaning` for what a table shows, each once, in their order."""
    return [f"{name} = {definitions[name]}" for name in dict.fromkeys(names)]
