"""A run as a JSON row: vLLM's and SGLang's names for what both measure, ours for what they do not tell apart."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.bench.serving.acceptance import Accepted
from slipstream.bench.serving.answer import Answer
from slipstream.bench.serving.load import Run, Strain

PERCENTILES = (90, 95, 99)
STATISTICS = ("mean", "median", "std", *(f"p{each}" for each in PERCENTILES), "max")
QUANTITIES = ("ttft", "tpot", "itl", "inter_token_latency", "e2el", "e2e_latency")
GOALS = ("ttft", "tpot", "e2el")
PEAK_S = 1.0

Row = dict[str, Any]


def as_row(run: Run, accepted: Accepted, goals: Mapping[str, float]) -> Row:
    """Everything that a run's numbers say; null where there is nothing to say it of. goals: ms by name, of GOALS."""
    answers = run.answers
    return {
        "duration": run.seconds,
        "completed": len(answers),
        "failed": len(run.failures),
        "failures": dict(Counter(each.reason.value for each in run.failures)),
        **_throughput(run, answers),
        "request_goodput": _goodput(answers, goals) / run.seconds if goals else None,
        "goodput": dict(goals) or None,
        **_latencies(answers),
        **_acceptance(accepted),
        **_strain(run.strain, run.seconds),
    }


def details(run: Run) -> Row:
    """Each request's own numbers, in their order; seconds, as vLLM and SGLang have them."""
    found = [each if isinstance(each, Answer) else None for each in run.outcomes]
    words = ["" if isinstance(each, Answer) else f"{each.reason.value}: {each.sentence}" for each in run.outcomes]
    return {
        "input_lens": [None if each is None else each.num_input for each in found],
        "output_lens": [0 if each is None else each.num_output for each in found],
        "ttfts": [None if each is None else each.first_s for each in found],
        "itls": [[] if each is None else each.gaps_s for each in found],
        "start_times": [each.began_s - run.began_s for each in run.outcomes],
        "errors": words,
    }


def _throughput(run: Run, answers: Sequence[Answer]) -> Row:
    inputs = [each.num_input for each in answers if each.num_input is not None]
    output, seconds = sum(each.num_output for each in answers), run.seconds
    total_input = sum(inputs) if len(inputs) == len(answers) else None
    total = None if total_input is None else (total_input + output) / seconds
    chunks = sum(len(each.chunk_s) for each in answers)
    speeds = [1 / each.per_token_s for each in answers if each.per_token_s]
    return {
        "total_input_tokens": total_input,
        "total_output_tokens": output,
        "output_tokens_counted_by": "server" if all(each.counted for each in answers) else "chunks",
        "request_throughput": len(answers) / seconds,
        "input_throughput": None if total_input is None else total_input / seconds,
        "output_throughput": output / seconds,
        "total_throughput": total,
        "total_token_throughput": total,
        "output_throughput_per_user": float(np.mean(speeds)) if speeds else None,
        "max_output_tokens_per_s": _peak(answers, run.began_s),
        "concurrency": sum(each.seconds for each in answers) / seconds,
        "max_concurrent_requests": _most_at_once((each.began_s, each.ended_s) for each in run.outcomes),
        "tokens_per_chunk": output / chunks if chunks else None,
    }


def _latencies(answers: Sequence[Answer]) -> Row:
    whole = [each.seconds for each in answers]
    values: dict[str, list[float] | None] = {
        "ttft": [each.first_s for each in answers],
        "tpot": [each.per_token_s for each in answers if each.per_token_s is not None],
        "itl": [gap for each in answers for gap in each.gaps_s],
        "inter_token_latency": _token_gaps(answers),
        "e2el": whole,
        "e2e_latency": whole,
    }
    return {
        f"{statistic}_{name}_ms": value
        for name in QUANTITIES
        for statistic, value in zip(STATISTICS, _statistics(values[name]), strict=True)
    }


def _statistics(seconds: Sequence[float] | None) -> list[float | None]:
    """In the order of STATISTICS, in ms."""
    if not seconds:
        return [None] * len(STATISTICS)
    ms = np.asarray(seconds) * 1e3
    found = [ms.mean(), np.median(ms), ms.std(), *np.percentile(ms, PERCENTILES), ms.max()]
    return [float(each) for each in found]


def _token_gaps(answers: Sequence[Answer]) -> list[float] | None:
    """Each gap shared out over the later chunk's tokens; None where chunks' tokens are not known of all answers."""
    found: list[float] = []
    for each in answers:
        if each.chunk_tokens is None:
            return None
        for gap, tokens in zip(each.gaps_s, each.chunk_tokens[1:], strict=True):
            found += [gap / tokens] * tokens
    return found


def _peak(answers: Sequence[Answer], began_s: float) -> float | None:
    """Most tokens within one of the run's seconds; None where chunks' tokens are not known of all answers."""
    seconds: Counter[int] = Counter()
    for each in answers:
        if each.chunk_tokens is None:
            return None
        for at_s, tokens in zip(each.chunk_s, each.chunk_tokens, strict=True):
            seconds[int((at_s - began_s) / PEAK_S)] += tokens
    return max(seconds.values()) / PEAK_S if seconds else None


def _most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    marks = sorted(mark for began_s, ended_s in spans for mark in ((began_s, 1), (ended_s, -1)))
    now = most = 0
    for _, step in marks:
        now += step
        most = max(most, now)
    return most


def _goodput(answers: Sequence[Answer], goals: Mapping[str, float]) -> int:
    """Answers that keep every goal; one without a TPOT keeps that one."""
    return sum(all(_ms(each, name) <= most for name, most in goals.items()) for each in answers)


def _ms(answer: Answer, name: str) -> float:
    seconds = {"ttft": answer.first_s, "tpot": answer.per_token_s or 0.0, "e2el": answer.seconds}[name]
    return seconds * 1e3


def _acceptance(found: Accepted) -> Row:
    length, rate = found.accept_length, found.accept_rate
    return {
        "accept_length": length,
        "accept_length_source": found.source,
        "accept_rate": rate,
        "acceptance_up_to_position": None if found.up_to_position is None else list(found.up_to_position),
        "spec_decode_acceptance_length": length,
        "spec_decode_acceptance_rate": None if rate is None else 100 * rate,
        "spec_decode_num_drafts": found.cycles,
        "spec_decode_draft_tokens": found.proposed,
        "spec_decode_accepted_tokens": found.accepted,
        "spec_decode_per_position_acceptance_rates": None if found.up_to_position is None else [*found.up_to_position],
    }


def _strain(strain: Strain, seconds: float) -> Row:
    lags = np.asarray(strain.lags_s or [0.0]) * 1e3
    return {
        "client_lag_median_ms": float(np.median(lags)),
        "client_lag_p99_ms": float(np.percentile(lags, 99)),
        "client_lag_max_ms": float(lags.max()),
        "client_cpu_share": strain.cpu_s / seconds,
    }
