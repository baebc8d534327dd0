"""`slipstream tune` on a tiny model: what it writes, what it says, and that a killed run goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.bench.definitions import DEFINITIONS, undefined
from slipstream.cli import tune as verb
from slipstream.config.tuned import read_tuned
from tests.unit.cli.world import Cli, World

GRID = ("--steps", "1,2", "--topk", "1,2", "--draft-tokens", "2,4")
CARE = ("--max-tokens", "12", "--cycles", "4", "--rounds", "2", "--device", "cpu")


def asked(world: World, folder: Path, *arguments: str) -> tuple[str, ...]:
    models = ("tune", "--model", world.model, "--draft", world.draft, "--prompts", world.prompts)
    return (*models, *GRID, *CARE, "--write", str(folder / "tuned.toml"), *arguments)


def test_a_search_writes_a_file_that_generate_takes_and_rows_whose_names_are_defined(
    cli: Cli, world: World, tmp_path: Path
):
    outcome = cli(*asked(world, tmp_path, "--batch", "1,2", "--json", "--out", str(tmp_path / "rows.jsonl")))
    assert outcome.code == 0, outcome.err
    *rows, last = outcome.objects
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == [*rows, last]
    assert [name for row in (*rows, last) for name in undefined(row)] == []
    assert last["num_shapes"] == 1 + 2 + 3  # plain; two chains; the trees 1x2x2, 2x2x2, 2x2x4
    for batch in (1, 2):
        mine = [row for row in rows if row["batch"] == batch]
        assert {(row["steps"], row["topk"]) for row in mine} >= {(0, 1), (1, 1), (2, 1)}
        (chosen,) = [row for row in mine if row["chosen"]]
        written = read_tuned(tmp_path / "tuned.toml").batches[batch]
        assert (written.steps, written.topk) == (chosen["steps"], chosen["topk"])
        assert chosen["steps"] == 0 or chosen["gain_over_plain"] > 1 + chosen["noise"]
        assert all(row["predicted_accept_length"] >= 1 for row in mine)
    answered = cli("generate", "--config", str(tmp_path / "tuned.toml"), "--prompt", "the fox", "--max-tokens", "4")
    assert answered.code == 0, answered.err


def test_the_tables_say_the_verdict_first_and_what_the_names_mean(cli: Cli, world: World, tmp_path: Path):
    outcome = cli(*asked(world, tmp_path))
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith(("bs 1: ", "INCONCLUSIVE: the machine was disturbed"))
    assert "K  0 #" in outcome.out
    for name in ("predicted_accept_length", "gain_over_plain", "noise", "confirmed_tokens_per_s"):
        assert f"{name} = {DEFINITIONS[name]}" in outcome.out
    assert (tmp_path / "tuned.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_run_measures_nothing_again_and_another_grid_is_refused(cli: Cli, world: World, tmp_path: Path):
    first = cli(*asked(world, tmp_path, "--json")).objects
    before = (tmp_path / "tuned.journal.jsonl").read_text()
    again = cli(*asked(world, tmp_path, "--json"))
    assert "going on from" in again.err
    assert (tmp_path / "tuned.journal.jsonl").read_text() == before
    same = [{name: row.get(name) for name in ("cycle_ms", "gain_over_plain", "chosen")} for row in first]
    assert [
        {name: row.get(name) for name in ("cycle_ms", "gain_over_plain", "chosen")} for row in again.objects
    ] == same
    other = cli(*asked(world, tmp_path, "--max-tokens", "13"))
    assert (other.code, other.out, len(other.errors)) == (2, "", 1)
    assert "is the journal of another run: max_tokens 13 (there 12)" in other.errors[0]


def test_a_killed_run_goes_on_where_it_was(world: World, tmp_path: Path):
    journal = tmp_path / "tuned.journal.jsonl"
    command = [sys.executable, "-m", "slipstream", *asked(world, tmp_path, "--json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        limit = time.monotonic() + 120
        while not (journal.exists() and journal.read_text().count("\n") >= 4):
            assert time.monotonic() < limit, "it measured nothing"
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    done = [line for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
    assert not (tmp_path / "tuned.toml").exists()
    with journal.open("a") as file:
        file.write('{"key": "cost 1')  # as if it had been killed while it wrote
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=240)
    assert f"going on from {len(done) - 1} measurements" in ended.stderr
    lines = journal.read_text().splitlines(keepends=True)
    assert lines[: len(done)] == done
    keys = [json.loads(line)["key"] for line in lines[1:]]
    assert len(keys) == len(set(keys)) > len(done)
    assert (tmp_path / "tuned.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--steps", "0"), "leaves nothing but plain decoding to choose"),
        (("--batch", "x"), "--batch is numbers with commas between them, not x"),
        (("--draft-tp", "2"), "--draft-tp 2 is not possible"),
        (("--max-tokens", "300"), "the model's context is 256"),
        (("--draft", "auto"), "no draft ships for"),
    ],
)
def test_a_mistake_is_one_sentence(cli: Cli, world: World, tmp_path: Path, arguments: tuple[str, ...], said: str):
    outcome = cli(*asked(world, tmp_path, *arguments))
    assert (outcome.code, outcome.out, len(outcome.errors)) == (2, "", 1)
    assert said in outcome.errors[0]
    assert not (tmp_path / "tuned.toml").exists()


def test_without_matplotlib_a_plot_that_was_asked_for_is_refused_with_the_remedy(
    cli: Cli, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(verb, "draw_curve", lambda *given, **named: False)
    outcome = cli(*asked(world, tmp_path, "--plot", str(tmp_path / "curve.png")))
    assert outcome.code == 2
    assert "pip install 'slipstream[plot]'" in outcome.errors[0]
    assert (tmp_path / "tuned.toml").exists()
