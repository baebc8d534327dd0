"""`slipstream bench serving` against servers that speak as vLLM, SGLang and others do, and as badly as they might."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slipstream.bench.definitions import undefined
from slipstream.bench.serving.definitions import SERVING_DEFINITIONS
from slipstream.cli.serving_tables import sentences
from tests.fake_openai import Fake, faking
from tests.patience import patience
from tests.unit.cli.world import Cli, World

COUNTERS = "vllm:spec_decode_num_drafts_total %d\nvllm:spec_decode_num_accepted_tokens_total %d\n"
WITHOUT_AIOHTTP = """
import sys
sys.modules["aiohttp"] = None
from slipstream.cli.main import main
main(["bench", "serving", "--url", "http://127.0.0.1:9", "--input-len", "5"])
"""


def vllms_metrics(answers: int) -> str:
    return COUNTERS % (1000 + 3 * answers, 5000 + 6 * answers)


def asked(url: str, *more: str) -> tuple[str, ...]:
    return ("bench", "serving", "--url", url, "--input-len", "5", "--num-prompts", "6", *more)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLIPSTREAM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_every_leaf_of_a_row_has_a_definition_and_the_file_holds_the_same_rows(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    with faking(Fake(metrics=vllms_metrics)) as url:
        outcome = cli(*asked(url, "--goodput", "ttft:9000", "--details", "--json", "--out", str(out)))
    assert outcome.code == 0
    (row,) = outcome.objects
    assert json.loads(out.read_text()) == row
    assert undefined(row, SERVING_DEFINITIONS) == []
    assert (row["backend"], row["model_id"], row["completed"], row["failed"]) == ("vllm", "fake-7b", 6, 0)
    assert (row["total_input_tokens"], row["total_output_tokens"], row["tokens_per_chunk"]) == (42, 60, 2.5)
    assert row["request_goodput"] == row["request_throughput"]
    assert row["output_lens"] == [10] * 6


def test_vllms_counters_of_the_run_alone_give_the_accept_length(cli: Cli) -> None:
    fake = Fake(metrics=vllms_metrics)
    with faking(fake) as url:
        (row,) = cli(*asked(url, "--warmup", "3", "--json")).objects
    assert len(fake.bodies) == 9
    assert row["accept_length"] == 3.0
    assert (row["spec_decode_num_drafts"], row["spec_decode_accepted_tokens"]) == (18, 36)
    assert "vllm:spec_decode" in row["accept_length_source"]


def test_vllms_fields_of_answers_give_it_too(cli: Cli) -> None:
    told = {"num_spec_steps": 3, "num_accepted_draft_tokens": 6, "num_draft_tokens": 9}
    with faking(Fake(last={"metrics": {"speculative_decoding": told}})) as url:
        (row,) = cli(*asked(url, "--json")).objects
    assert (row["accept_length"], row["accept_rate"]) == (3.0, pytest.approx(2 / 3))
    assert "6 of 6 answers" in row["accept_length_source"]


def test_sglangs_gauge_is_taken_and_said_to_be_one(cli: Cli) -> None:
    fake = Fake(owned_by="sglang", metrics=lambda answers: "sglang:spec_accept_length 2.4\n")
    with faking(fake) as url:
        (row,) = cli(*asked(url, "--json")).objects
    assert (row["backend"], row["accept_length"]) == ("sglang", 2.4)
    assert "gauge" in row["accept_length_source"]


def test_sglangs_server_info_is_asked_where_metrics_are_off(cli: Cli) -> None:
    info = {"internal_states": [{"avg_spec_accept_length": 2.2}]}
    with faking(Fake(owned_by="sglang", info=info)) as url:
        (row,) = cli(*asked(url, "--json")).objects
    assert row["accept_length"] == 2.2


def test_an_unknown_server_gets_openais_fields_alone_and_reports_no_acceptance(cli: Cli) -> None:
    fake = Fake(owned_by="somebody")
    with faking(fake) as url:
        (row,) = cli(*asked(url, "--endpoint", "chat", "--json")).objects
    assert set(fake.bodies[0]) == {
        *("model", "messages", "stream", "stream_options", "max_completion_tokens", "temperature"),
    }
    assert fake.bodies[0]["stream_options"] == {"include_usage": True}
    assert (row["backend"], row["accept_length"], row["ignore_eos"]) == ("openai", None, False)
    assert row["accept_length_source"].startswith("not reported")
    assert row["mean_inter_token_latency_ms"] is None
    assert row["total_output_tokens"] == 60


def test_a_known_server_is_asked_for_tokens_of_chunks_and_to_ignore_eos(cli: Cli) -> None:
    fake = Fake()
    with faking(fake) as url:
        cli(*asked(url, "--temperature", "0.5", "--seed", "40", "--output-len", "9", "--token-ids", "50"))
    body = fake.bodies[1]
    assert (body["ignore_eos"], body["stream_options"]["continuous_usage_stats"]) == (True, True)
    assert (body["max_tokens"], body["temperature"]) == (9, 0.5)
    assert len(body["prompt"]) == 5
    assert all(0 <= token < 50 for token in body["prompt"])
    assert sorted(each["seed"] for each in fake.bodies) == [40, 40, 41, 42, 43, 44, 45]


def test_fields_can_be_added_and_eos_left_alone(cli: Cli) -> None:
    fake = Fake()
    with faking(fake) as url:
        (row,) = cli(*asked(url, "--extra-body", '{"top_k": 5}', "--no-ignore-eos", "--json")).objects
    assert fake.bodies[0]["top_k"] == 5
    assert "ignore_eos" not in fake.bodies[0]
    assert row["extra_body"] == {"top_k": 5}


def test_prompts_of_a_file_are_asked_in_their_order_and_again(cli: Cli, world: World) -> None:
    fake = Fake()
    with faking(fake) as url:
        more = ("--num-prompts", "6", "--concurrency", "1", "--warmup", "0", "--json")
        (row,) = cli("bench", "serving", "--url", url, "--prompts", world.prompts, *more).objects
    texts = [body["prompt"] for body in fake.bodies]
    assert texts[0] == "the quick brown fox"
    assert texts[4:] == texts[:2]
    assert (row["prompts"], row["input_len"]) == ("prompts.jsonl", None)


def test_random_prompts_are_the_seeds_own_and_differ_between_levels(cli: Cli) -> None:
    fakes = [Fake(), Fake(), Fake()]
    for fake, seed in zip(fakes, ("1", "1", "2"), strict=True):
        with faking(fake) as url:
            assert cli(*asked(url, "--seed", seed, "--concurrency", "1,2", "--warmup", "0")).code == 0
    first, again, other = ([body["prompt"] for body in fake.bodies] for fake in fakes)
    assert sorted(first) == sorted(again)
    assert len({*first, *other}) == 24
    assert all(len(prompt.split()) == 5 for prompt in first)


def test_no_more_requests_are_in_flight_than_allowed_and_a_sweep_has_a_row_each(cli: Cli) -> None:
    fake = Fake(delay_s=0.01)
    with faking(fake) as url:
        rows = cli(*asked(url, "--concurrency", "1,4", "--json")).objects
    assert [row["max_concurrency"] for row in rows] == [1, 4]
    assert [row["max_concurrent_requests"] for row in rows] == [1, 4]
    assert fake.most_open == 4
    assert fake.connections <= 5
    assert rows[0]["duration"] > rows[1]["duration"]


def test_times_are_the_servers(cli: Cli) -> None:
    with faking(Fake(delay_s=0.05)) as url:
        (row,) = cli(*asked(url, "--concurrency", "2", "--json")).objects
    assert 45 <= row["median_itl_ms"] <= patience(100)
    assert row["mean_ttft_ms"] >= 45
    assert row["mean_tpot_ms"] == pytest.approx(3 * row["mean_itl_ms"] / 9, rel=0.1)
    assert row["mean_inter_token_latency_ms"] == pytest.approx(row["mean_itl_ms"] / 3, rel=0.1)
    assert row["client_lag_median_ms"] <= patience(50)


def test_requests_arrive_at_the_rate(cli: Cli) -> None:
    with faking(Fake()) as url:
        (row,) = cli(*asked(url, "--request-rate", "40", "--details", "--json")).objects
    starts = row["start_times"]
    assert starts == sorted(starts)
    assert starts[-1] > 0.02
    assert (row["request_rate"], row["burstiness"]) == (40.0, 1.0)


@pytest.mark.parametrize(
    ("fake", "reason", "said"),
    [
        (Fake(cut_after=2), "broken stream", "hung up within the response"),
        (Fake(error_after=2), "error in stream", "out of memory"),
        (Fake(done=False), "broken stream", "without [DONE]"),
        (Fake(status=429, said="slow down"), "too many requests", "slow down"),
        (Fake(status=503, said="loading"), "server error", "loading"),
        (Fake(delay_s=1.0), "timeout", "not done within 0.2 s"),
    ],
)
def test_failed_requests_are_counted_and_told_by_reason(cli: Cli, fake: Fake, reason: str, said: str) -> None:
    with faking(fake) as url:
        timeout = ("--timeout", "0.2") if reason == "timeout" else ()
        outcome = cli(*asked(url, "--warmup", "0", *timeout, "--json"))
    (row,) = outcome.objects
    assert (outcome.code, row["completed"], row["failures"]) == (1, 0, {reason: 6})
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"6 failed: {reason} (")
    assert said in line


def test_a_few_failures_leave_the_others_numbers(cli: Cli) -> None:
    with faking(Fake(fails=lambda number: number % 3 == 2)) as url:
        outcome = cli(*asked(url, "--warmup", "0"))
    assert outcome.code == 1
    assert "2 failed: server error (500 So: oh no)" in outcome.err
    assert "4" in outcome.out


@pytest.mark.parametrize(
    ("fake", "more", "said"),
    [
        (Fake(key="right"), (), "wants another key (401 So: who are you?); pass --api-key"),
        (Fake(key="right"), ("--api-key", "wrong"), "wants another key"),
        (Fake(model=None), (), "lists no models (200 from /v1/models); pass --model"),
        (Fake(status=404, said="no such model"), ("--model", "x"), "404 So: no such model); check --model"),
        (Fake(status=400, said="ignore_eos is not supported"), (), "ignore_eos is not supported); leave out"),
        (Fake(), ("--token-ids", "9", "--endpoint", "chat"), "--token-ids needs --endpoint completions"),
        (Fake(), ("--endpoint", "embeddings"), "--endpoint embeddings is unknown; use completions or chat"),
        (Fake(), ("--request-rate", "0"), "--request-rate is a number above 0, or inf, not 0"),
        (Fake(), ("--concurrency", "0"), "--concurrency 0: each lies between 1"),
        (Fake(), ("--concurrency", "all"), "--concurrency is numbers with commas between them, not all"),
        (Fake(), ("--goodput", "speed:5"), "--goodput speed:5: write one of ttft, tpot, e2el"),
        (Fake(), ("--extra-body", "[]"), "--extra-body is a JSON object, not []"),
        (Fake(), ("--timeout", "0"), "--timeout is a number of seconds above 0, not 0"),
        (Fake(), ("--steps", "3"), "--steps is of a server that --shape starts"),
        (Fake(), ("--shape", "tiny"), "name what is measured: either --url"),
        (Fake(), ("--api-key", "l\u00e4ut"), "no header can"),
    ],
)
def test_a_mistake_is_one_sentence(cli: Cli, fake: Fake, more: tuple[str, ...], said: str) -> None:
    with faking(fake) as url:
        outcome = cli(*asked(url, *more))
    assert (outcome.code, outcome.out, len(outcome.errors)) == (2, "", 1)
    assert said in outcome.errors[0]


def test_a_server_that_is_not_there_is_one_sentence(cli: Cli) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        outcome = cli(*asked(f"http://127.0.0.1:{held.getsockname()[1]}"))
    assert (outcome.code, outcome.out, len(outcome.errors)) == (2, "", 1)
    assert "cannot be reached" in outcome.errors[0]
    assert "start the server, or give another --url" in outcome.errors[0]


def test_without_the_extra_one_sentence_says_how_to_install_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_AIOHTTP], capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert "bench serving needs aiohttp; install it with: pip install 'slipstream[serve]'" in line


def test_the_key_is_taken_from_the_environment_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    fake = Fake(key="right")
    with faking(fake) as url:
        assert cli(*asked(url)).code == 0
    assert all("authorization: Bearer right\r\n" in head for head in fake.heads)


def test_the_table_says_what_the_names_mean_and_what_to_beware_of(cli: Cli) -> None:
    with faking(Fake(usage=False)) as url:
        outcome = cli(*asked(url))
    assert outcome.code == 0
    for name in ("mean_tpot_ms", "mean_itl_ms", "mean_inter_token_latency_ms", "accept_length", "output_throughput"):
        assert f"{name} = {SERVING_DEFINITIONS[name]}" in outcome.out
    assert "accept length on them says nothing about real ones" in outcome.out
    assert "its chunks were counted as tokens" in outcome.out
    assert "client at concurrency -" in outcome.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--shape", "tiny"), "--shape needs --concurrency"),
        (("--shape", "odd", "--concurrency", "1"), "no shape is called odd"),
        (("--shape", "tiny", "--concurrency", "1", "--prompts", "x"), "--prompts contradicts --shape"),
        (("--shape", "tiny", "--concurrency", "1", "--endpoint", "chat"), "use --endpoint completions"),
        (("--shape", "tiny", "--concurrency", "1", "--api-key", "k"), "--api-key contradicts --shape"),
        (("--shape", "tiny", "--concurrency", "1", "--acceptance", "2"), "--acceptance 2: each lies between 0 and 1"),
        ((), "name what is measured"),
    ],
)
def test_a_shape_that_cannot_be_served_is_refused_before_anything_starts(
    cli: Cli, more: tuple[str, ...], said: str
) -> None:
    outcome = cli("bench", "serving", *more)
    assert (outcome.code, outcome.out, len(outcome.errors)) == (2, "", 1)
    assert said in outcome.errors[0]


def test_a_shape_is_served_at_random_beside_its_bare_cycles(cli: Cli) -> None:
    more = ("--steps", "2", "--input-len", "16", "--max-tokens", "24", "--num-prompts", "4", "--device", "cpu")
    outcome = cli("bench", "serving", "--shape", "tiny", "--concurrency", "1,2", *more, "--json")
    assert outcome.code == 0, outcome.err
    rows = outcome.objects
    assert [name for row in rows for name in undefined(row, SERVING_DEFINITIONS)] == []
    assert [(row["max_concurrency"], row["completed"], row["failed"]) for row in rows] == [(1, 4, 0), (2, 4, 0)]
    for row in rows:
        assert (row["backend"], row["model"], row["weights"]) == ("slipstream", "tiny", "dummy")
        assert (row["total_input_tokens"], row["total_output_tokens"]) == (64, 96)
        assert row["decreed_accept_length"] == pytest.approx(2.134)
        assert 1 <= row["accept_length"] <= 3
        assert row["bare_tpot_ms"] == pytest.approx(row["bare_cycle_ms"] / row["accept_length"])
        assert row["tpot_over_bare"] == pytest.approx(row["mean_tpot_ms"] / row["bare_tpot_ms"] - 1)
    total = sum(row["spec_decode_num_drafts"] for row in rows)
    assert sum(row["accept_length"] * row["spec_decode_num_drafts"] for row in rows) == pytest.approx(96 * 2 - 8)
    assert total > 0


def bare_row(**more: float | None) -> dict[str, Any]:
    """As much of a row as the sentences are made of."""
    found = {"bare_cycle_ms": 4.0, "bare_cycle_before_ms": 4.0, "bare_cycle_after_ms": 4.0, "bare_tpot_ms": 2.0}
    found |= {"mean_tpot_ms": 2.08, "tpot_over_bare": 0.04, "accept_length": 2.0, "mean_itl_ms": 4.1}
    found |= {"max_concurrency": 1, "client_lag_median_ms": 0.1, "client_lag_p99_ms": 0.2, "client_cpu_share": 0.05}
    words = {"prompts": "random token ids", "accept_length_source": "s", "output_tokens_counted_by": "server"}
    return {**words, **found, **more}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "+4.0% beside the bare 2.000 ms (cycle 4.000 ms / accept length 2.000): within 5%"),
        ({"tpot_over_bare": 0.06}, "NOT within 5%"),
        ({"bare_cycle_after_ms": 4.3}, "INCONCLUSIVE, for the bare cycle itself moved by 7.5% meanwhile"),
    ],
)
def test_the_verdict_on_what_serving_adds_needs_a_steady_machine(more: dict[str, float], said: str) -> None:
    assert sentences([bare_row(**more)])[-1].endswith(said)


@pytest.mark.parametrize(
    ("more", "warned"), [({}, False), ({"client_cpu_share": 0.9}, True), ({"client_lag_median_ms": 0.5}, True)]
)
def test_a_client_that_may_be_what_was_measured_says_so(more: dict[str, float], warned: bool) -> None:
    (line,) = [line for line in sentences([bare_row(**more)]) if line.startswith("client at concurrency 1")]
    assert ("WARNING: the client may be what was measured" in line) is warned
