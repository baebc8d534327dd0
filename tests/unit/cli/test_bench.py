"""`slipstream bench` on a tiny model: rows, tables, names."""

import json
from pathlib import Path

import pytest

from slipstream.bench.definitions import DEFINITIONS, undefined
from slipstream.cli import bench as verb
from tests.unit.cli.world import PROMPTS, Cli, World


def acceptance(world: World, *arguments: str) -> tuple[str, ...]:
    asked = ("--prompts", world.prompts, "--max-tokens", "20")
    return ("bench", "acceptance", "--model", world.model, *asked, *arguments)


def test_acceptance_writes_a_row_for_each_draft_and_temperature(cli: Cli, world: World, tmp_path: Path):
    out = tmp_path / "results" / "acceptance.jsonl"
    outcome = cli(
        *acceptance(world, "--draft", world.draft, "--draft", world.draft, "--steps", "3"),
        *("--temperature", "0", "--temperature", "1", "--limit", "3", "--out", str(out), "--json"),
    )
    assert outcome.code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows == outcome.objects
    assert [name for row in rows for name in undefined(row)] == []
    rows, pairs = rows[:4], rows[4:]
    assert [(pair["bench"], pair["temperature"], pair["difference"]) for pair in pairs] == [
        ("acceptance paired", 0, 0),
        ("acceptance paired", 1, 0),
    ]
    assert all(pair["verdict"].startswith("INCONCLUSIVE: 3 prompts are too few") for pair in pairs)
    assert [(row["draft"], row["temperature"]) for row in rows] == [(world.draft, 0), (world.draft, 1)] * 2
    assert rows[0]["accept_length"] == rows[2]["accept_length"] >= 1
    assert {row["num_answers"] for row in rows} == {3}
    assert rows[0]["prompts"] == "prompts.jsonl"
    settings = {name: rows[0][name] for name in ("steps", "topk", "draft_tokens", "max_tokens", "max_batch", "seed")}
    assert settings == {"steps": 3, "topk": 1, "draft_tokens": 3, "max_tokens": 20, "max_batch": 16, "seed": 0}
    assert all(rows[0][name] for name in ("torch", "slipstream", "hardware", "date"))


def test_acceptance_prints_numbers_with_their_names(cli: Cli, world: World):
    outcome = cli(*acceptance(world, "--draft", world.draft))
    assert outcome.code == 0
    names = ("accept_length", "accept_rate", "acceptance_by_position", "accept_length_by_steps", "loop_rate")
    assert all(f"{name} = {DEFINITIONS[name]}" in outcome.out for name in names)
    assert "= vLLM's num_speculative_tokens 4, SGLang's num_draft_tokens 5" in outcome.out
    assert "cycles by accepted tokens 0: " in outcome.out
    assert all(task in outcome.out for task in ("odd", "even"))


def test_acceptance_without_a_draft_is_refused(cli: Cli, world: World):
    outcome = cli(*acceptance(world))
    assert (outcome.code, outcome.out, len(outcome.errors)) == (2, "", 1)


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(cli: Cli, world: World, tmp_path: Path):
    outcome = cli(*acceptance(world, "--draft", "/nowhere", "--out", str(tmp_path)))
    assert (outcome.code, outcome.out, len(outcome.errors)) == (1, "", 1)
    assert str(tmp_path) in outcome.errors[0]


def test_cpu_prints_speeds_parts_and_the_break_even(cli: Cli, world: World, tmp_path: Path):
    out = tmp_path / "cpu.jsonl"
    outcome = cli(
        *("bench", "cpu", "--model", world.model, "--draft", world.draft, "--prompts", world.prompts),
        *("--limit", "2", "--max-tokens", "8", "--rounds", "1", "--out", str(out)),
    )
    assert outcome.code == 0
    assert outcome.out.count("2 of 2") == 3
    words = ("transformers", "speculative", "break-even accept length", "rows verified", "beside one row")
    assert all(word in outcome.out for word in words)
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert row["answers_equal_to_plain"] == {"transformers": 2, "plain": 2, "speculative": 2}


def test_cpu_says_what_it_cannot_compare(cli: Cli, world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verb, "has_transformers", lambda: False)
    outcome = cli(
        *("bench", "cpu", "--model", world.model, "--prompts", world.prompts),
        *("--limit", "1", "--max-tokens", "4", "--rounds", "1", "--json"),
    )
    assert outcome.code == 0
    assert len(outcome.err.splitlines()) == 2
    assert "pip install transformers" in outcome.err
    assert list(outcome.objects[0]["tokens_per_s"]) == ["plain"]
    assert "cycle_ratio" not in outcome.objects[0]


def test_a_limit_takes_built_in_prompts_across_the_tasks():
    assert len({entry.task for entry in verb.chosen_prompts(None, 8)}) == 8
    assert len(verb.chosen_prompts(None, None)) == 33


def test_a_limit_takes_the_first_prompts_of_a_file(world: World):
    found = verb.chosen_prompts(Path(world.prompts), 2)
    assert [entry.prompt for entry in found] == list(PROMPTS[:2])
