"""A profile in sentences, the verdict first. Pure functions."""

from collections.abc import Sequence

from slipstream.bench.profile_changes import Change
from slipstream.bench.profile_served import Served
from slipstream.bench.profile_sums import Fit, StageRow
from slipstream.bench.profile_verdict import INCONCLUSIVE, Verdict
from slipstream.bench.spans import ACCEPT, EXTEND, HOST, VERIFY, is_draft

MEMORY_BOUND = 0.6  # of the floor: from here on a stage is reading weights
AGREES = 0.03  # of wall time that stages may miss

_NAMES = {EXTEND: "extend", VERIFY: "verify", ACCEPT: "accept and sampling", HOST: "the host gap", "draft": "drafting"}


def verdict_sentence(verdict: Verdict) -> str:
    """Gain or loss, or why neither can be said."""
    if verdict.gain is None:
        return f"{INCONCLUSIVE}: {verdict.reason}."
    interval = f"90% interval {verdict.gain_low:+.1%} to {verdict.gain_high:+.1%}"
    side = "faster" if verdict.gain > 0 else "slower"
    told = f"speculation is {abs(verdict.gain):.1%} {side} than plain decoding ({interval})"
    if verdict.word == INCONCLUSIVE:
        return f"{INCONCLUSIVE}: {verdict.reason}; as measured, {told}."
    return f"{verdict.word}: {told}."


def balance_sentence(verdict: Verdict) -> str:
    """R, the break-even and what was accepted."""
    ratio = f"R = cycle / plain step = {verdict.ratio:.2f} ({verdict.ratio_low:.2f} to {verdict.ratio_high:.2f})"
    even = f"break-even accept length {verdict.ratio:.2f}"
    if verdict.accept_length is None:
        return f"{ratio}; {even}, measured accept length: none."
    interval = f"({verdict.accept_low:.2f} to {verdict.accept_high:.2f})"
    return f"{ratio}; {even}, measured accept length {verdict.accept_length:.2f} {interval}."


def bound_sentence(rows: Sequence[StageRow], cycle_ms: float) -> str:
    """What the cycle is made of most."""
    groups: dict[str, float] = {}
    for row in rows:
        group = "draft" if is_draft(row.label) else row.label
        groups[group] = groups.get(group, 0.0) + row.ms - row.communication_ms
    groups["communication"] = sum(row.communication_ms for row in rows)
    largest = max(groups, key=groups.__getitem__)
    share = groups[largest] / cycle_ms
    name = _NAMES.get(largest, largest)
    inside = [row for row in rows if (is_draft(row.label) if largest == "draft" else row.label == largest)]
    floor = sum(row.floor_ms or 0.0 for row in inside)
    return f"{name} bounds the cycle: {share:.0%} of it{_why(largest, floor, groups[largest])}."


def _why(largest: str, floor_ms: float, ms: float) -> str:
    if largest == HOST:
        return ", and the device waits meanwhile"
    if largest == "communication":
        return ", waiting for slower ranks included"
    if ms <= 0 or floor_ms <= 0:
        return ""
    at = f"; it is at {floor_ms / ms:.0%} of its floor ({floor_ms:.2f} ms)"
    if floor_ms / ms >= MEMORY_BOUND:
        return f"{at}, so reading weights and KV entries is what it waits for"
    return f"{at}, so launches, threads or kernels hold it, not the memory"


def served_sentence(served: Served) -> str:
    """The cycle as it is served beside the one that is split."""
    return (
        f"as served, the next cycle launched before this one is read, a cycle takes {served.cycle_ms:.2f} ms and run"
        f" one by one {served.bare_ms:.2f} ms: {served.hidden_ms:.2f} ms of the host's part are hidden, and the device"
        f" idles for {served.idle_share:.1%}; what bounds the cycle, R, step(K), gains and T are of served cycles,"
        " stages of cycles run one by one."
    )


def fit_sentence(fit: Fit) -> str:
    """step(K)."""
    seen = ", ".join(f"K {steps}: {ms:.2f}" for steps, ms in fit.points)
    return f"step(K) = {fit.a_ms:.2f} + {fit.b_ms:.2f} K ms, largest residual {fit.residual_ms:.2f} ms ({seen})."


def agreement_sentence(sum_ms: float, wall_ms: float) -> str:
    """Whether the stages add up."""
    off = (wall_ms - sum_ms) / wall_ms
    word = "within" if abs(off) <= AGREES else "NOT within"
    return f"stages add up to {sum_ms:.3f} of {wall_ms:.3f} ms wall ({off:+.1%} unexplained, {word} {AGREES:.0%})."


def change_sentences(changes: Sequence[Change]) -> list[str]:
    """What is worth most."""
    if not changes:
        return ["no change that was looked at is worth half a percent."]
    return [f"{place}. {each.change}: {each.gain:+.1%} ({each.formula})" for place, each in enumerate(changes, 1)]
