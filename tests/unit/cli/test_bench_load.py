"""`slipstream bench load` on a tiny model."""

import json
from pathlib import Path

import pytest

from slipstream.bench import load
from tests.unit.cli.world import Cli, World


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "METHODS", load.METHODS[:2])  # not every file system of a test reads directly


def test_load_writes_rates_of_the_storage_and_of_every_share(cli: Cli, world: World, tmp_path: Path):
    out = tmp_path / "load.jsonl"
    asked = ("--model", world.model, "--rounds", "2", "--dtype", "float32", "--dtype", "bfloat16")
    outcome = cli("bench", "load", *asked, "--out", str(out), "--json")
    assert outcome.code == 0
    (row,) = outcome.objects
    assert json.loads(out.read_text()) == row
    assert list(row["storage_bytes_per_s"]) == ["1 x 4 MB", "2 x 4 MB"]
    assert list(row["load_bytes_per_s"]) == [
        f"rank 0 of {size}, {dtype}" for size in (1, 2) for dtype in ("float32", "bfloat16")
    ]
    rates = [*row["storage_bytes_per_s"].values(), *row["load_bytes_per_s"].values()]
    assert all(len(each) == 2 and min(each) > 0 for each in rates)


def test_load_prints_each_rate_beside_the_best_read(cli: Cli, world: World):
    outcome = cli("bench", "load", "--model", world.model, "--rounds", "1", "--ranks", "1")
    assert outcome.code == 0
    assert all(words in outcome.out for words in ("median of 1 rounds", "read 1 x 4 MB", "rank 0 of 1, bfloat16"))


@pytest.mark.parametrize(("option", "value"), [("--dtype", "int3"), ("--model", "/nowhere"), ("--ranks", "3")])
def test_load_refuses_what_it_cannot_do(cli: Cli, world: World, option: str, value: str):
    outcome = cli("bench", "load", "--model", world.model, option, value)
    assert (outcome.code, outcome.out, len(outcome.errors)) == (2, "", 1)
