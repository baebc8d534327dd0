"""`slipstream bench serving` against our own server: what the client counts is what the server counts."""

import pytest

from tests.served import Server
from tests.unit.cli.world import World, run


def test_the_client_and_the_server_count_the_same(
    server: Server, http_world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLIPSTREAM_API_KEY", raising=False)
    server.wait_until(server.idle)
    names = ("slipstream_cycles_total", "slipstream_emitted_tokens_total", "slipstream_generation_tokens_total")
    before = [server.number(name) for name in names]
    asked = ("--prompts", http_world.prompts, "--max-tokens", "20", "--concurrency", "3", "--warmup", "0", "--json")
    outcome = run(capsys, "bench", "serving", "--url", server.url, *asked)
    assert outcome.code == 0, outcome.err
    (row,) = outcome.objects
    server.wait_until(server.idle)
    cycles, emitted, tokens = (server.number(name) - old for name, old in zip(names, before, strict=True))
    assert (row["backend"], row["model_id"], row["completed"]) == ("slipstream", "tiny", 4)
    assert row["total_output_tokens"] == tokens == 80
    assert row["spec_decode_num_drafts"] == cycles
    assert row["accept_length"] == pytest.approx(emitted / cycles)
    assert row["tokens_per_chunk"] == pytest.approx(80 / (4 + cycles))
    assert row["mean_inter_token_latency_ms"] < row["mean_itl_ms"]
    assert "metrics.speculative_decoding of 4 of 4 answers" in row["accept_length_source"]


def test_counters_alone_give_the_same_accept_length(
    server: Server, http_world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    server.wait_until(server.idle)
    asked = ("--prompts", http_world.prompts, "--max-tokens", "20", "--concurrency", "2", "--json")
    fields, counters = (
        run(capsys, "bench", "serving", "--url", server.url, *asked, *more).objects[0]
        for more in ((), ("--extra-body", '{"speculation": null}'))
    )
    assert "slipstream_cycles_total" in counters["accept_length_source"]
    assert counters["accept_length"] == pytest.approx(fields["accept_length"])
    assert counters["acceptance_up_to_position"] == pytest.approx(fields["acceptance_up_to_position"])


def test_chats_are_served_alike(server: Server, http_world: World, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--prompts", http_world.prompts, "--endpoint", "chat", "--max-tokens", "12", "--json")
    outcome = run(capsys, "bench", "serving", "--url", server.url, *asked)
    assert outcome.code == 0, outcome.err
    assert outcome.objects[0]["total_output_tokens"] == 48


def test_a_model_that_is_not_served_is_one_sentence(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(capsys, "bench", "serving", "--url", server.url, "--model", "other", "--num-prompts", "2")
    assert (outcome.code, outcome.out, len(outcome.errors)) == (2, "", 1)
    assert "check --model" in outcome.errors[0]
