"""/cycles: the last cycles one by one, which together are what /metrics counts."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.serve.recent import MOST, RecentCycles
from tests.served import Server

TEXT = {"prompt": "the quick brown fox", "max_tokens": 30, "temperature": 0, "ignore_eos": True}


def cycles(server: Server, after: int = 0) -> list[dict[str, Any]]:
    return server.get("/cycles", params={"after": after}).json()["cycles"]


def test_every_cycle_of_an_answer_is_told(server: Server) -> None:
    server.wait_until(server.idle)
    before = int(server.number("slipstream_batches_total"))
    stages = ("extend", "propose", "verify", "accept", "cycle", "prefill")
    sums = [server.number(f'slipstream_stage_seconds_total{{stage="{stage}"}}') for stage in stages]
    answer = server.post("/v1/completions", {**TEXT, "speculation": {"metrics": True}}).json()
    server.wait_until(server.idle)
    counts = answer["metrics"]["speculative_decoding"]
    found = cycles(server, before)
    assert [each["cycle"] for each in found] == list(range(before + 1, before + counts["num_spec_steps"] + 1))
    assert {each["batch"] for each in found} == {1}
    assert sum(each["emitted_tokens"] for each in found) == 29
    assert sum(each["proposed_tokens"] for each in found) == counts["num_draft_tokens"]
    for stage, sum_before in zip(stages, sums, strict=True):
        grown = server.number(f'slipstream_stage_seconds_total{{stage="{stage}"}}') - sum_before
        assert sum(each["stage_seconds"][stage] for each in found) == pytest.approx(grown, abs=1e-6), stage
    assert found[0]["stage_seconds"]["prefill"] > 0
    assert all(each["stage_seconds"]["prefill"] == 0 for each in found[1:])
    assert all(each["stage_seconds"]["verify"] > 0 for each in found)
    assert cycles(server, found[-1]["cycle"]) == []


def test_requests_that_run_together_share_their_cycles(server: Server) -> None:
    server.wait_until(server.idle)
    before = int(server.number("slipstream_batches_total"))
    server.post("/v1/completions", {**TEXT, "n": 3})
    server.wait_until(server.idle)
    found = cycles(server, before)
    assert max(each["batch"] for each in found) == 3
    assert sum(each["emitted_tokens"] for each in found) == 3 * 29


@pytest.mark.parametrize("after", ["-1", "x", "1.5", ""])
def test_what_is_no_count_is_refused_by_name(server: Server, after: str) -> None:
    response = server.get("/cycles", params={"after": after})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "after"


def test_many_cycles_between_two_reports_keep_the_last() -> None:
    totals = SimpleNamespace(cycles=0, proposed=0, emitted=0)
    engine: Any = SimpleNamespace(totals=totals, costs=SimpleNamespace(batches=0))
    seconds = deque([{"verify": float(count)} for count in range(MOST + 10)])
    recent = RecentCycles(engine, seconds.popleft)
    recent.see()  # a step without a cycle
    for _ in range(MOST + 5):
        engine.costs.batches += 1
        totals.cycles, totals.proposed, totals.emitted = totals.cycles + 2, totals.proposed + 6, totals.emitted + 5
        recent.see()
    found = recent.take()
    assert [each.cycle for each in found] == list(range(6, MOST + 6))
    assert {(each.batch, each.proposed, each.emitted, each.stage_s["verify"]) for each in found} == {(2, 6, 5, 1.0)}
    assert recent.take() == []
