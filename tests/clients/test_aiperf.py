"""aiperf: every request succeeds, and its Spec Decode table is filled from our answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.world import client, run
from tests.served import model_arguments, serving
from tests.unit.cli.world import make_world

pytestmark = pytest.mark.clients

REQUESTS = 8


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_aiperf_reads_speculation_from_answers(tmp_path: Path, kind: str) -> None:
    program, world = client("aiperf"), make_world(tmp_path)
    more = ("--served-model-name", "tiny", "--speculation-metrics", "--metrics-compat", "vllm")
    with serving(*model_arguments(world.model, world.draft, "--steps", "3", *more)) as server:
        load = ["--concurrency", "2", "--request-count", str(REQUESTS), "--streaming", "--endpoint-type", kind]
        load += [
            "--synthetic-input-tokens-mean",
            "20",
            "--output-tokens-mean",
            "16",
            "--extra-inputs",
            "ignore_eos:true",
        ]
        common = ["--model", "tiny", "--url", server.url, "--tokenizer", world.model, "--ui", "none"]
        printed = run(
            program, "profile", *common, *load, "--output-artifact-dir", "out", folder=tmp_path, offline=False
        )
        accepted = server.number("slipstream_accept_length")
    assert "Spec Decode" in printed
    found: dict[str, Any] = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert found["request_count"]["avg"] == REQUESTS
    weighted = found["spec_decode_token_weighted_acceptance_length"]["avg"]
    assert weighted == pytest.approx(accepted, rel=0.2)  # the server also counts aiperf's warm-up
    assert found["spec_decode_acceptance_length"]["avg"] >= 1
