"""`slipstream bench latency` on the tiny shape: rows, names, refusals."""

import json
from pathlib import Path

import pytest

from slipstream.bench.definitions import DEFINITIONS, undefined
from tests.unit.cli.world import Cli, World

TINY = ("bench", "latency", "--shape", "tiny", "--device", "cpu", "--cycles", "4", "--rounds", "1", "--batch", "1")


def test_every_leaf_of_a_row_has_a_definition_and_the_table_prints_the_same_names(cli: Cli, tmp_path: Path):
    out = tmp_path / "rows.jsonl"
    outcome = cli(*TINY, "--steps", "2", "--context", "32", "--json", "--out", str(out))
    assert outcome.code == 0
    rows = outcome.objects
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows
    assert [row["steps"] for row in rows] == [0, 2]
    assert [name for row in rows for name in undefined(row)] == []
    plain, cycle = rows
    assert plain["draft"] is None
    assert plain["cycle_ratio"] == 1
    assert cycle["plain_step_ms"] == plain["cycle_ms"]
    assert cycle["cycle_ratio"] == cycle["break_even_accept_length"] == cycle["cycle_ms"] / plain["cycle_ms"]
    assert cycle["fingerprint"] == plain["fingerprint"]
    assert cycle["floor_ms"] / cycle["cycle_ms"] == pytest.approx(cycle["share_of_floor"])
    assert cycle["decreed_accept_length"] == pytest.approx(2.134)
    parts = ("target_weight_bytes", "target_kv_bytes", "draft_weight_bytes", "draft_kv_bytes")
    assert sum(cycle[part] for part in parts) == cycle["cycle_bytes"]
    assert min(cycle[part] for part in parts) > 0


def test_the_bytes_of_the_tiny_shape_are_those_of_its_arithmetic(cli: Cli):
    rows = cli(*TINY, "--steps", "2", "--context", "32", "--json").objects
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96 + 2 * 64  # qkv, output, gate-up and down, two norms
    head = (8 * layer + 64 + 64 * 128) * 4
    assert rows[0]["target_weight_bytes"] == head
    entries = 32 + (6 + 2)  # half of the timed cycles, after the warm-up
    assert rows[0]["target_kv_bytes"] == entries * 8 * 2 * 2 * 16 * 4
    draft = 2 * 64 * 128 + 64 * 64 + 3 * 64 * 96 + 4 * 64 + 64 * 96
    assert rows[1]["draft_weight_bytes"] == (2 * draft + 3 * 64 * 64) * 4


def test_the_table_goes_with_its_definitions(cli: Cli):
    outcome = cli(*TINY, "--steps", "1")
    assert outcome.code == 0
    assert "read rate" in outcome.out
    assert "copy rate" in outcome.out
    for name in ("cycle_ms", "cycle_ratio", "share_of_floor", "tb_per_s"):
        assert f"{name} = {DEFINITIONS[name]}" in outcome.out
    assert "context 16384 left out: the model's is 2048 tokens" in outcome.err


def test_a_baseline_of_equal_settings_is_set_beside_and_another_is_refused(cli: Cli, tmp_path: Path):
    out = tmp_path / "rows.jsonl"
    asked = (*TINY, "--steps", "1", "--context", "32")
    assert cli(*asked, "--out", str(out)).code == 0
    rows = cli(*asked, "--baseline", str(out), "--json").objects
    earlier = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["baseline_cycle_ms"] for row in rows] == [row["cycle_ms"] for row in earlier]
    assert all(row["speedup_over_baseline"] == row["baseline_cycle_ms"] / row["cycle_ms"] for row in rows)
    assert [name for row in rows for name in undefined(row)] == []
    outcome = cli(*asked, "--dtype", "bfloat16", "--baseline", str(out))
    assert (outcome.code, outcome.out, len(outcome.errors)) == (2, "", 1)
    assert "dtype bfloat16 (baseline float32)" in outcome.errors[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--context", "4k"), "are beyond the model's context of 2048 tokens"),
        (("--steps", "many"), "--steps is numbers with commas between them, not many"),
        (("--batch", "0"), "--batch 0: each lies between 1 and 256"),
        (("--draft", "d"), "needs a checkpoint to draft for"),
        (("--model", "m"), "contradicts"),
        (("--baseline", "nowhere.jsonl"), "does not exist"),
        (("--draft-tp", "2"), "--draft-tp 2 is not possible beside a target cut over 1"),
    ],
)
def test_a_mistake_is_one_sentence(cli: Cli, arguments: tuple[str, ...], said: str):
    outcome = cli(*TINY, *arguments)
    assert (outcome.code, outcome.out, len(outcome.errors)) == (2, "", 1)
    assert said in outcome.errors[0]


def test_a_checkpoint_and_its_draft_are_timed_alike(cli: Cli, world: World):
    asked = ("--device", "cpu", "--cycles", "2", "--rounds", "1", "--batch", "2", "--steps", "1", "--context", "16")
    rows = cli("bench", "latency", "--model", world.model, "--draft", world.draft, *asked, "--json").objects
    assert [(row["settings"]["weights"], row["batch"], row["draft"]) for row in rows] == [
        ("checkpoint", 2, None),
        ("checkpoint", 2, world.draft),
    ]
