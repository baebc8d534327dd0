"""`slipstream plan` as it is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.plan.definitions import DEFINITIONS, undefined
from tests.unit.cli.world import Cli

KIMI = ("--model", "kimi-k2.5", "--hardware", "8x-rtx-pro-6000-pcie")
QUICK = ("--steps", "0,2,5", "--draft-tp", "8")
WITHOUT_TORCH = """
import sys
import slipstream.plan.cost, slipstream.plan.search, slipstream.plan.explain, slipstream.plan.check
from slipstream.cli.main import main
try:
    main(["plan", "--model", "llama-3.1-8b", "--hardware", "1x-h200", "--accept", "2.8@3", "--steps", "3"])
finally:
    print("torch" in sys.modules)
"""


def test_planning_imports_no_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=60, check=True)
    assert "K = 3" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


def test_the_verdict_comes_first_then_rows_limits_changes_and_definitions(cli: Cli):
    outcome = cli("plan", *KIMI, "--accept", "2.1@5", *QUICK)
    assert outcome.code == 0
    assert outcome.out.startswith("INCONCLUSIVE: K = ")
    places = [outcome.out.index(words) for words in ("K  placement", "what limits", "what would change it", "ratio = ")]
    assert places == sorted(places)


def test_json_has_what_the_terminal_shows_and_defines_every_field(cli: Cli):
    shown = cli("plan", *KIMI, "--accept", "2.1@5", *QUICK).out
    told = json.loads(cli("plan", *KIMI, "--accept", "2.1@5", *QUICK, "--json").out)
    assert undefined(told) == []
    assert " ".join(told["sentence"].split()) in " ".join(shown.split())
    assert [row["steps"] for row in told["rows"]] == [0, 2, 5]
    for row in told["rows"]:
        assert f"{row['cycle_ms'][0]:.2f}" in shown
        assert f"{row['tokens_per_s'][0]:.0f}" in shown
    for change in told["changes"]:
        assert change["change"] in shown
    assert set(told["definitions"]) == set(DEFINITIONS)


def test_an_undefined_field_would_be_noticed():
    assert undefined({"rows": [{"steps": 1, "mystery": 2}], "parameters": {"eta_d": 1}}) == ["mystery"]


def test_the_founding_case_is_worked_with_both_readings(cli: Cli):
    outcome = cli("plan", "--example", "kimi-k2.5-pcie")
    for words in ("71.4", "94.1", "H1: ", "H2: ", "measure: time V(1), V(2), V(3), V(6)"):
        assert words in outcome.out
    told = json.loads(cli("plan", "--example", "kimi-k2.5-pcie", "--json").out)
    assert undefined(told) == []
    assert set(told) <= set(told["definitions"])


def test_without_an_accept_length_it_says_what_one_would_need(cli: Cli):
    outcome = cli("plan", *KIMI, *QUICK)
    assert "no accept length was given" in outcome.out
    assert "accept length that is needed" in outcome.out


def test_a_config_of_ones_own_is_planned(cli: Cli, tmp_path: Path):
    raw = {
        "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 4,
        "intermediate_size": 8192, "vocab_size": 50000,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(raw))
    for path in (tmp_path, tmp_path / "config.json"):
        told = json.loads(cli("plan", "--model", str(path), "--hardware", "1x-rtx-4090", "--json", "--steps", "3").out)
        assert told["weight_bytes"] > 2e9


def test_ones_own_times_make_the_forecast_sure_enough_for_a_verdict(cli: Cli, tmp_path: Path):
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"verify_curve": [{"tokens": 1, "ms": 10.9}, {"tokens": 4, "ms": 16.5}]}))
    for own in (("--calibrate", str(file)), ("--calibrate-points", "1:10.9,4:16.5")):
        outcome = cli("plan", *KIMI, "--accept", "3.4@5", *QUICK, *own)
        assert outcome.out.startswith("GAIN")
        assert "calibrated with your own times" in outcome.out


def test_a_known_plain_speed_is_the_first_row(cli: Cli):
    told = json.loads(cli("plan", *KIMI, "--accept", "2.1@5", "--plain", "90", *QUICK, "--json").out)
    assert told["rows"][0]["tokens_per_s"] == pytest.approx([90, 90, 90], abs=0.1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--model and --hardware say what to plan"),
        (("--model", "kimi-k9", "--hardware", "1x-h200"), "the nearest are"),
        (("--model", "kimi-k2", "--hardware", "9x-h20000"), "h200"),
        ((*KIMI, "--accept", "2.1"), "2.1@5"),
        ((*KIMI, "--accept", "9@5"), "between 1 and 6"),
        ((*KIMI, "--accept", "2.1@5", "--accept-by-position", ".5"), "give one of them"),
        ((*KIMI, "--accept-by-position", ".5,.6"), "position 2"),
        ((*KIMI, "--steps", "a"), "--steps is numbers"),
        ((*KIMI, "--steps", "0"), "at least one K"),
        ((*KIMI, "--draft-tp", "3"), "there are all, replicated, 1, 2, 4, 8"),
        ((*KIMI, "--draft", "oracle"), "kinds are"),
        ((*KIMI, "--draft-tokens", "8"), "--topk 1"),
        ((*KIMI, "--all-reduce", "fast"), "tuned, untuned, one-shot"),
        ((*KIMI, "--plain", "90", "--calibrate-points", "1:2"), "give one of them"),
        ((*KIMI, "--plain", "0"), "above zero"),
        ((*KIMI, "--calibrate", "/no/such/file"), "there is no file"),
        (("--example", "nothing"), "there is kimi-k2.5-pcie"),
        (("--example", "kimi-k2.5-pcie", "--model", "x"), "contradicts"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_the_remedy(cli: Cli, arguments, words):
    outcome = cli("plan", *arguments)
    assert outcome.code == 2
    assert len(outcome.errors) == 1
    assert words in outcome.errors[0]
