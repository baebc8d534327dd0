"""/metrics: what is counted, under which names, and that the numbers are those of the answers."""

import json
import re

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.served import ROOT, Server

NAMES = re.compile(r"slipstream_\w+")
SUFFIXES = {"counter": "_total", "histogram": "_bucket"}  # of what a dashboard asks for
TEXT = {"prompt": "the quick brown fox", "max_tokens": 30, "temperature": 0, "ignore_eos": True}


def samples(server: Server) -> dict[str, float]:
    """All samples by name and labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(server.get("/metrics").text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_counts_grow_by_what_answers_say(server: Server) -> None:
    server.wait_until(server.idle)
    before = samples(server)
    answer = server.post("/v1/completions", {**TEXT, "speculation": {"metrics": True}}).json()
    server.wait_until(server.idle)
    after = samples(server)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    counts = answer["metrics"]["speculative_decoding"]
    assert grown("slipstream_cycles_total") == grown("slipstream_batches_total") == counts["num_spec_steps"]
    assert grown("slipstream_proposed_tokens_total") == counts["num_draft_tokens"]
    assert grown("slipstream_accepted_tokens_total") == counts["num_accepted_draft_tokens"]
    assert grown("slipstream_emitted_tokens_total") == 29
    assert grown("slipstream_generation_tokens_total") == 30
    assert grown("slipstream_prompt_tokens_total") == answer["usage"]["prompt_tokens"]
    assert grown("slipstream_answers_total{finish_reason=length}") == 1
    assert grown("slipstream_http_responses_total{path=/v1/completions,status=200}") == 1
    assert grown("slipstream_time_to_first_token_seconds_count") == 1
    assert grown("slipstream_time_per_output_token_seconds_count") == 1
    assert grown("slipstream_request_duration_seconds_count") == 1
    assert grown("slipstream_inter_token_latency_seconds_count") == 29
    assert grown("slipstream_inter_chunk_latency_seconds_count") == counts["num_spec_steps"]
    stages = ("extend", "propose", "verify", "accept", "cycle")
    parts = [grown(f"slipstream_stage_seconds_total{{stage={stage}}}") for stage in stages]
    assert all(part > 0 for part in parts)
    assert sum(parts) == pytest.approx(grown("slipstream_cycle_seconds_total"))
    assert grown("slipstream_stage_seconds_total{stage=prefill}") > 0
    assert grown("slipstream_stage_seconds_total{stage=host}") >= 0


def test_vllms_names_hold_the_same_counts(server: Server) -> None:
    server.post("/v1/completions", TEXT)
    server.wait_until(server.idle)
    found = samples(server)
    labels = "engine=0,model_name=tiny"
    assert found[f"vllm:spec_decode_num_draft_tokens_total{{{labels}}}"] == found["slipstream_proposed_tokens_total"]
    assert found[f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}}"] == found["slipstream_accepted_tokens_total"]
    first = found[f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position=0}}"]
    assert first == found["slipstream_position_accepted_total{position=1}"]
    assert found[f"vllm:spec_decode_num_drafts_total{{{labels}}}"] > 0


def test_gauges_say_what_is_so_now(server: Server) -> None:
    server.post("/v1/completions", TEXT)
    server.wait_until(server.idle)
    found = samples(server)
    assert found["slipstream_kv_usage_ratio"] == 0
    assert found["slipstream_requests_running"] == found["slipstream_requests_waiting"] == 0
    assert 1 <= found["slipstream_accept_length"] <= 4
    assert "slipstream_acceptance_drift" not in found or 0 < found["slipstream_acceptance_drift"] < 4
    assert 0 <= found["slipstream_acceptance_by_position{position=1}"] <= 1
    assert found["slipstream_cycle_ratio{batch=1}"] > 0


def test_prompts_that_begin_alike_are_found_in_the_prefix_cache(server: Server) -> None:
    body = {"prompt": [7] * 100, "max_tokens": 1}
    server.post("/v1/completions", body)
    server.wait_until(server.idle)
    before = samples(server)
    answer = server.post("/v1/completions", body).json()
    server.wait_until(server.idle)
    hits = samples(server)["slipstream_prefix_hit_tokens_total"] - before["slipstream_prefix_hit_tokens_total"]
    assert hits == answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


def ours(server: Server) -> list[Metric]:
    """The families with our prefix, but for the times at which the client library made them."""
    families = text_string_to_metric_families(server.get("/metrics").text)
    return [each for each in families if each.name.startswith("slipstream_") and not each.name.endswith("_created")]


def test_the_dashboard_asks_for_every_exported_name_and_no_other(server: Server) -> None:
    server.post("/v1/completions", TEXT)
    exported = {each.name + SUFFIXES.get(each.type, "") for each in ours(server)}
    panels = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())["panels"]
    asked = {name for panel in panels for target in panel["targets"] for name in NAMES.findall(target["expr"])}
    assert asked == exported


def test_every_exported_name_is_documented(server: Server) -> None:
    documented = set(NAMES.findall((ROOT / "docs" / "serving.md").read_text()))
    assert {each.name + "_total" * (each.type == "counter") for each in ours(server)} == documented
