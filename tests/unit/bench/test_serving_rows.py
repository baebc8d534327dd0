"""A run's numbers, worked out by hand; each has a definition."""

import math
from itertools import pairwise

import pytest

from slipstream.bench.definitions import undefined
from slipstream.bench.serving.acceptance import Accepted
from slipstream.bench.serving.answer import Answer, Failure, Reason
from slipstream.bench.serving.definitions import SERVING_DEFINITIONS
from slipstream.bench.serving.load import Level, Run, Strain, arrivals
from slipstream.bench.serving.rows import QUANTITIES, STATISTICS, as_row, details

NOTHING = Accepted(accept_length=None, source="not reported")


def answer(began_s: float, *chunk_s: float, tokens: tuple[int, ...] | None, num_output: int) -> Answer:
    return Answer(
        began_s=began_s,
        chunk_s=chunk_s,
        chunk_tokens=tokens,
        num_input=10,
        num_output=num_output,
        counted=True,
        finish_reason="length",
        speculation=None,
        meta=None,
    )


FIRST = answer(100.0, 100.5, 101.0, 101.5, tokens=(1, 1, 3), num_output=5)
SECOND = answer(100.0, 100.25, tokens=(1,), num_output=1)
LOST = Failure(reason=Reason.TIMEOUT, sentence="not done within 1 s", began_s=101.0, ended_s=102.0)


def run_of(*outcomes: Answer | Failure) -> Run:
    return Run(outcomes=outcomes, seconds=2.0, began_s=100.0, strain=Strain(lags_s=[0.001, 0.003], cpu_s=0.5))


def test_numbers_are_those_of_their_definitions() -> None:
    row = as_row(run_of(FIRST, SECOND, LOST), NOTHING, {})
    assert (row["completed"], row["failed"], row["failures"]) == (2, 1, {"timeout": 1})
    assert (row["total_input_tokens"], row["total_output_tokens"]) == (20, 6)
    assert (row["request_throughput"], row["output_throughput"]) == (1.0, 3.0)
    assert row["input_throughput"] == 10.0
    assert row["total_throughput"] == row["total_token_throughput"] == 13.0
    assert row["mean_ttft_ms"] == 375.0
    assert row["mean_tpot_ms"] == row["max_tpot_ms"] == 250.0  # an answer of one token has none
    assert row["output_throughput_per_user"] == 4.0
    assert row["mean_itl_ms"] == 500.0
    assert row["mean_inter_token_latency_ms"] == pytest.approx((500 + 3 * 500 / 3) / 4)
    assert row["mean_e2el_ms"] == row["mean_e2e_latency_ms"] == 875.0
    assert row["concurrency"] == (1.5 + 0.25) / 2
    assert row["max_concurrent_requests"] == 2
    assert row["max_output_tokens_per_s"] == 4.0  # in the run's second second
    assert row["tokens_per_chunk"] == 1.5
    assert (row["client_lag_median_ms"], row["client_cpu_share"]) == (2.0, 0.25)


def test_goodput_counts_answers_that_keep_every_limit() -> None:
    run = run_of(FIRST, SECOND, LOST)
    assert as_row(run, NOTHING, {})["request_goodput"] is None
    assert as_row(run, NOTHING, {"ttft": 300})["request_goodput"] == 0.5
    assert as_row(run, NOTHING, {"ttft": 600, "tpot": 250, "e2el": 1500})["request_goodput"] == 1.0
    assert as_row(run, NOTHING, {"tpot": 249})["request_goodput"] == 0.5


def test_what_is_unknown_is_null_and_not_a_guess() -> None:
    unknown = answer(100.0, 100.5, 101.0, tokens=None, num_output=4)
    row = as_row(run_of(FIRST, unknown), NOTHING, {})
    assert row["mean_inter_token_latency_ms"] is None
    assert row["max_output_tokens_per_s"] is None
    assert row["accept_length"] is None
    nobody = as_row(run_of(LOST), NOTHING, {"ttft": 1})
    assert (nobody["completed"], nobody["mean_ttft_ms"], nobody["request_goodput"]) == (0, None, 0.0)


def test_vllms_and_sglangs_names_are_there_and_every_leaf_is_defined() -> None:
    accepted = Accepted(accept_length=2.5, source="s", accept_rate=0.5, cycles=2, proposed=6, accepted=3)
    run = run_of(FIRST, LOST)
    row = {**as_row(run, accepted, {"ttft": 1.0}), **details(run)}
    assert undefined(row, SERVING_DEFINITIONS) == []
    theirs = {f"{statistic}_{name}_ms" for statistic in STATISTICS for name in QUANTITIES}
    theirs |= {"request_goodput", "total_token_throughput", "total_throughput", "accept_length", "max_itl_ms"}
    theirs |= {f"spec_decode_{name}" for name in ("acceptance_rate", "acceptance_length", "num_drafts")}
    theirs |= {"ttfts", "itls", "input_lens", "output_lens", "errors", "duration", "completed", "failed"}
    assert theirs <= set(row)
    assert (row["spec_decode_acceptance_rate"], row["spec_decode_num_drafts"]) == (50.0, 2)
    assert row["errors"] == ["", "timeout: not done within 1 s"]


def test_arrivals_are_poissons_and_the_seeds_own() -> None:
    def level(rate: float, seed: int = 0) -> Level:
        return Level(max_concurrency=None, request_rate=rate, timeout_s=1.0, seed=seed)

    assert arrivals(level(math.inf), 3) == [0.0, 0.0, 0.0]
    found = arrivals(level(50.0), 5000)
    assert found[0] == 0.0
    gaps = [later - earlier for earlier, later in pairwise(found)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) == pytest.approx(mean, rel=0.1)
    assert found == arrivals(level(50.0), 5000) != arrivals(level(50.0, seed=1), 5000)
