"""The accept length of a run, wherever the server tells it, under our definition.

Ours: tokens emitted a cycle, the target's own included, the prefill's left out. vLLM's is 1 + accepted / drafts, the
same but that cycles without a draft are no drafts. SGLang's counters divide all tokens of an answer, so the prefill's
too; its gauges are of its last interval.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.bench.serving.answer import Answer

SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
POSITION = re.compile(r'position="(\d+)"')
ACCEPTED = ("spec_accept_token_num", "spec_accepted_drafts", "spec_num_correct_drafts")
PROPOSED = ("spec_draft_token_num", "spec_proposed_drafts", "spec_num_proposed_drafts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What was accepted, as far as the server tells."""

    accept_length: float | None
    source: str  # where it is from, and how it was made ours
    accept_rate: float | None = None
    cycles: int | None = None
    proposed: int | None = None
    accepted: int | None = None
    up_to_position: tuple[float, ...] | None = None  # P(positions 1 to i all accepted)


Samples = Mapping[str, float]  # of /metrics: a name's sum over all labels but `position`, which becomes name[position]


def accepted_of(answers: Sequence[Answer], before: Samples, after: Samples, info: bytes) -> Accepted:
    """By the best source there is; info: the body of /server_info."""
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    found = from_fields(answers) or from_meta(answers) or from_our_counters(grown) or from_vllms_counters(grown)
    return found or from_sglangs_gauge(after) or from_sglangs_info(info) or not_reported(after)


def from_fields(answers: Sequence[Answer]) -> Accepted | None:
    """`metrics.speculative_decoding` of answers, vLLM's shape."""
    told = [each.speculation for each in answers if each.speculation and each.speculation.get("num_spec_steps")]
    if not told:
        return None
    cycles, accepted, proposed = (
        sum(int(each.get(name) or 0) for each in told)
        for name in ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")
    )
    histograms = [each.get("acceptance_histogram") or [] for each in told]
    source = f"metrics.speculative_decoding of {len(told)} of {len(answers)} answers: 1 + accepted / cycles"
    return _counted(cycles, accepted, proposed, source, up_to_position=_reached(histograms, cycles))


def from_meta(answers: Sequence[Answer]) -> Accepted | None:
    """SGLang's `meta_info` of answers; its accept length would count the prefill's token as a cycle's."""
    told = [(each.num_output, each.meta) for each in answers if each.meta and each.meta["spec_verify_ct"]]
    if not told:
        return None
    cycles = sum(int(meta["spec_verify_ct"]) for _, meta in told)
    emitted = sum(num_output - 1 for num_output, _ in told)
    accepted, proposed = (_sum_of(names, [meta for _, meta in told]) for names in (ACCEPTED, PROPOSED))
    return Accepted(
        accept_length=emitted / cycles,
        source=f"meta_info of {len(told)} of {len(answers)} answers: (tokens - 1) / spec_verify_ct; SGLang's own does"
        " not take the prefill's token off",
        accept_rate=accepted / proposed if accepted is not None and proposed else None,
        cycles=cycles,
        proposed=proposed,
        accepted=accepted,
    )


def from_our_counters(grown: Samples) -> Accepted | None:
    """/metrics of slipstream."""
    cycles = round(grown.get("slipstream_cycles_total", 0))
    if not cycles:
        return None
    return _counted(
        cycles,
        round(grown["slipstream_emitted_tokens_total"]) - cycles,
        round(grown.get("slipstream_proposed_tokens_total", 0)),
        "slipstream_emitted_tokens_total / slipstream_cycles_total, what they grew by",
        up_to_position=_by_position(grown, "slipstream_position_accepted_total", cycles, first=1),
    )


def from_vllms_counters(grown: Samples) -> Accepted | None:
    """/metrics of vLLM."""

    def of(name: str) -> float:
        whole = f"vllm:spec_decode_{name}"
        return grown.get(f"{whole}_total", grown.get(whole, 0.0))

    drafts = round(of("num_drafts"))
    if not drafts:
        return None
    positions = "vllm:spec_decode_num_accepted_tokens_per_pos"
    return _counted(
        drafts,
        round(of("num_accepted_tokens")),
        round(of("num_draft_tokens")),
        "1 + vllm:spec_decode_num_accepted_tokens_total / vllm:spec_decode_num_drafts_total, what they grew by; cycles"
        " that drafted nothing are not counted there",
        up_to_position=_by_position(grown, f"{positions}_total", drafts, first=0)
        or _by_position(grown, positions, drafts, first=0),
    )


def from_sglangs_gauge(after: Samples) -> Accepted | None:
    """/metrics of SGLang: a gauge, so of its last interval and not of the run."""
    length = after.get("sglang:spec_accept_length", 0.0)
    if length <= 0:
        return None
    return Accepted(
        accept_length=length,
        source="the gauge sglang:spec_accept_length after the run: of SGLang's last interval, not of the whole run",
        accept_rate=after.get("sglang:spec_accept_rate") or None,
    )


def from_sglangs_info(info: bytes) -> Accepted | None:
    """/server_info of SGLang, which its own benchmark reads."""
    try:
        length = json.loads(info)["internal_states"][0]["avg_spec_accept_length"]
    except (ValueError, LookupError, TypeError):
        return None
    if not isinstance(length, int | float) or length <= 0:
        return None
    source = "avg_spec_accept_length of /server_info: of everything since the server started, not of the run"
    return Accepted(accept_length=float(length), source=source)


def not_reported(after: Samples) -> Accepted:
    """Nobody says."""
    why = "answers and /server_info do not tell it, and /metrics has no count of it that grew"
    return Accepted(accept_length=None, source=f"not reported: {why}" if after else f"{NO_METRICS}: {why}")


NO_METRICS = "not reported (no /metrics)"


def read_samples(text: str) -> dict[str, float]:
    """Prometheus' text; gauges of several engines become their mean, counters their sum."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        position = POSITION.search(labels or "")
        try:
            found[f"{name}[{position[1]}]" if position else name].append(float(value))
        except ValueError:
            continue
    means = ("sglang:spec_accept_length", "sglang:spec_accept_rate")
    return {name: sum(values) / (len(values) if name in means else 1) for name, values in found.items()}


def _counted(
    cycles: int, accepted: int, proposed: int, source: str, *, up_to_position: tuple[float, ...] | None
) -> Accepted:
    return Accepted(
        accept_length=1 + accepted / cycles,
        source=source,
        accept_rate=accepted / proposed if proposed else None,
        cycles=cycles,
        proposed=proposed,
        accepted=accepted,
        up_to_position=up_to_position,
    )


def _reached(histograms: Iterable[Sequence[int]], cycles: int) -> tuple[float, ...] | None:
    """From how many cycles accepted 0, 1, 2, ... tokens; None where that is not told of all cycles."""
    total: dict[int, int] = defaultdict(int)
    for histogram in histograms:
        for place, count in enumerate(histogram):
            total[place] += count
    if sum(total.values()) != cycles:
        return None
    return tuple(sum(total[later] for later in total if later >= place) / cycles for place in range(1, len(total)))


def _by_position(grown: Samples, name: str, cycles: int, *, first: int) -> tuple[float, ...] | None:
    shares: list[float] = []
    while f"{name}[{first + len(shares)}]" in grown:
        shares.append(grown[f"{name}[{first + len(shares)}]"] / cycles)
    return tuple(shares) or None


def _sum_of(names: Sequence[str], told: Sequence[Mapping[str, Any]]) -> int | None:
    """The first of several names that all of them have."""
    for name in names:
        if all(each.get(name) is not None for each in told):
            return sum(int(each[name]) for each in told)
    return None
