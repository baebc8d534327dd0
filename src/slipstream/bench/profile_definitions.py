"""What the fields of a profile mean that no other measurement has."""

from collections.abc import Iterable, Mapping
from typing import Any

from slipstream.bench.definitions import DEFINITIONS

_ABOUT = {
    "profile_version": "layout of this object",
    "acceptance_decreed": "acceptance by position under which cycles were timed; the last holds for all beyond",
    "cycles_per_round": "cycles of each case that are timed in a round, warm-up excluded",
    "rounds": "passes over all cases, so that a drift meets each",
    "injected_ms": "delays put in on purpose: extend and verify once a cycle, draft once a step, host once a cycle",
    "injected_allreduce_us": "delay put into every collective on purpose",
    "time_source": "how times were taken",
    "communication_source": "how collectives were timed",
    "read_tb_per_s": "best rate at which rank 0's device read memory that no cache holds, in this run, TB/s",
}
_VERDICT = {
    "judging_cycles": "which cycles plain_step_ms, cycle_ms, R, the fit, the cycles of placements, the verdict and T of"
    " the changes are of: served (unmarked, launched ahead as the engine does it, in every round beside the recorded"
    " ones) or, where nothing runs ahead or delays are injected, recorded (marked, one by one)",
    "verdict": "GAIN, LOSS, or INCONCLUSIVE where the interval holds 0 or evidence is thin",
    "reason": "why it is INCONCLUSIVE; empty otherwise",
    "gain": "accept length measured on prompts / R - 1; null where no real weights were run",
    "gain_low": "lower end of the gain's 90% interval, resampled over answers and cycles",
    "gain_high": "upper end of the gain's 90% interval, resampled over answers and cycles",
    "cycle_ratio_low": "lower end of R's 90% interval, resampled over cycles",
    "cycle_ratio_high": "upper end of R's 90% interval, resampled over cycles",
    "sentences": "the profile in words, verdict first",
}
_CURVE = {
    "tokens": "n: rows of one request that the verify forward runs, root included",
    "ms": "V(n): median time of the verify stage over n tokens, batch 1, inside real cycles",
    "p90_ms": "90th percentile over all cycles of the time beside it",
    "over_one": "V(n) / V(1)",
    "reading": "flat; fixed overhead (a jump at n = 2); slow path (a slope); both; or unclear (no line)",
    "slope_ms": "ms a further token, least squares over n >= 2",
    "jump_ms": "the line over n >= 2 read at n = 1, less V(1): what verifying costs before it verifies more",
    "reading_sentence": "the reading in words",
    "draft_step_ms": "D: median of a draft step after the first (draft forward, head, choice of a token)",
}
_STAGES = {
    "stage": "extend: the draft over the positions emitted before; draft 1: head and choice on what extend left; draft"
    " i: a draft forward, head and choice; verify: target forward, logits included; accept: sampling, acceptance and"
    " what is kept; host: everything while the device has nothing of the cycle to do, in cycles run one by one;"
    " unexplained: wall less all",
    "stage_ms": "mean time of the stage over the typical cycles, the middle half by wall time, so that stages add up",
    "stage_median_ms": "median of the stage's time over all cycles; medians do not add up",
    "stage_p90_ms": "90th percentile of the stage's time over all cycles",
    "share_of_cycle": "stage_ms over wall_ms",
    "communication_ms": "time of the stage's collectives on rank 0, waiting for other ranks included, a part of it",
    "bytes": "what rank 0 must read in the stage: weights once, KV entries once a request, logits once",
    "flops": "floating-point operations of the stage on rank 0: two a weight and row, four a row, key and column",
    "stage_floor_ms": "bytes over read_tb_per_s: the stage cannot be shorter",
    "stage_share_of_floor": "stage_floor_ms over stage_ms: 1 is as fast as the memory allows",
    "stage_sum_ms": "all stages together, unexplained left out",
    "wall_ms": "mean wall time of the typical recorded cycles, the middle half; they run one by one, so the host's part"
    " shows in full. In serving captured ones are launched ahead: served_cycle_ms",
    "unexplained_share": "(wall_ms - stage_sum_ms) / wall_ms",
    "bare_cycle_ms": "median cycle of the same shape without any marks, run one by one; null where delays are injected",
    "marks_overhead": "wall_ms / bare_cycle_ms - 1: what measuring costs, and noise",
    "served_cycle_ms": "median wall time of a cycle of the same shape as it is served: without any marks, the next one"
    " launched before the host has read it; null where judging_cycles are the recorded ones",
    "host_hidden_ms": "max(0, bare_cycle_ms - served_cycle_ms): how much of the host's part runs while the device does",
    "device_idle_share": "max(0, served_cycle_ms - all stages but host) / served_cycle_ms: share of a served cycle in"
    " which the device has nothing to do",
}
_FIT = {
    "fit_a_ms": "a of step(K) = a + b K, least squares over K in 1, 2, 3, 5",
    "fit_b_ms": "b of the same: ms a further step",
    "fit_residual_ms": "largest distance of a measured cycle from the line",
    "measured_ms": "median cycle at K = steps",
    "fitted_ms": "a + b K",
    "residual_ms": "measured_ms - fitted_ms",
}
_PARTS = {
    "draft_placements": "the draft in every placement; none on one rank",
    "collectives": "the collectives of a cycle by stage, group, operation and name; none on one rank",
    "placement_draft_ms": "extend and all draft steps at K = 5 under the placement, medians",
    "placement_cycle_ms": "cycle at the profiled K under the placement, on a line through K = 1 and 5",
    "role": "whose group: target or draft",
    "op": "all_reduce, all_gather or broadcast",
    "name": "what the layer calls it",
    "count": "how many a cycle sends in the stage, mean",
    "message_bytes": "of one, rank 0's share, mean",
    "us": "median time of one on rank 0, waiting for other ranks included, microseconds",
    "us_p90": "90th percentile of the same",
    "ms_per_cycle": "all of a cycle's together, mean",
}
_ACCEPTANCE = {
    "acceptance": "what real prompts got accepted, cost aside; null where no real weights were run",
    "accept_steps": "K that was drafted to measure acceptance: chains of fewer steps are read from it",
    "accept_length_at_steps": "accept length at the profiled K",
    "accept_length_low": "lower end of its 90% interval, resampled over answers",
    "accept_length_high": "upper end of its 90% interval, resampled over answers",
    "accept_lengths": "accept length at each number of steps",
}
_CHANGES = {
    "change": "what to do",
    "change_gain": "tokens a second over the profiled cycle's, less one, by the formula",
    "formula": "how the gain is computed, with its numbers; T is the mean of the middle half of the judging cycles",
}
PROFILE_DEFINITIONS: Mapping[str, str] = {
    **DEFINITIONS,
    **_ABOUT,
    **_VERDICT,
    **_CURVE,
    **_STAGES,
    **_FIT,
    **_PARTS,
    **_ACCEPTANCE,
    **_CHANGES,
}


def definitions_of(found: Mapping[str, Any]) -> dict[str, str]:
    """The definitions of the names that a profile holds."""
    return {name: PROFILE_DEFINITIONS[name] for name in _names(found) if name in PROFILE_DEFINITIONS}


def _names(found: Any) -> Iterable[str]:
    if isinstance(found, Mapping):
        for name, value in found.items():
            yield name
            yield from _names(value)
    elif isinstance(found, list | tuple):
        for each in found:
            yield from _names(each)
