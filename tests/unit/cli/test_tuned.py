"""`--config FILE` of `slipstream generate` and `serve`: what the file settles, and what beats it."""

import math
from pathlib import Path
from typing import Any

import pytest

from slipstream.config.speculation import Speculation
from slipstream.config.tuned import TunedShape, read_tuned, tuned_toml
from tests.unit.cli.world import Cli, Outcome, World

TREE = Speculation(steps=2, topk=2, draft_tokens=4)


def write(path: Path, world: World, shapes: dict[int, tuple[Speculation, str]]) -> str:
    text = tuned_toml(model=world.model, draft=world.draft, shapes=shapes, notes={1: "one at a time"})
    path.write_text(text)
    return str(path)


def drafted(outcome: Outcome) -> int:
    """Draft tokens of a cycle: an answer's last cycles may have fewer."""
    assert outcome.code == 0, outcome.err
    counts = [each["speculation"] for each in outcome.objects]
    return max(math.ceil(each["proposed"] / each["cycles"]) for each in counts)


@pytest.fixture
def config(tmp_path: Path, world: World) -> str:
    chain = Speculation(steps=3, topk=1, draft_tokens=3)
    plain = Speculation(steps=0, topk=1, draft_tokens=0)
    return write(tmp_path / "tuned.toml", world, {1: (chain, "1"), 2: (TREE, "1"), 4: (plain, "")})


def test_what_tune_writes_reads_back(tmp_path: Path, world: World) -> None:
    found = read_tuned(Path(write(tmp_path / "t.toml", world, {1: (TREE, "replicated"), 8: (TREE, "2")})))
    assert (found.model, found.draft) == (world.model, world.draft)
    assert found.batches[1] == TunedShape(steps=2, topk=2, draft_tokens=4, draft_tp="replicated")
    assert found.for_batch(1) == found.batches[1]
    assert found.for_batch(2) == found.for_batch(8) == found.for_batch(99) == found.batches[8]


def test_the_file_chooses_the_model_and_the_shape_for_as_many_prompts_as_run_together(
    cli: Cli, world: World, config: str
) -> None:
    asked = ("generate", "--config", config, "--max-tokens", "24", "--json")
    assert drafted(cli(*asked, "--prompt", "the quick brown fox")) == 3
    assert drafted(cli(*asked, "--prompt", "the quick brown fox", "--n", "2")) == 4
    assert drafted(cli(*asked, "--prompts", world.prompts)) == 0
    assert drafted(cli(*asked, "--prompts", world.prompts, "--max-batch", "1")) == 3


@pytest.mark.parametrize(
    ("flags", "draft_tokens"),
    [
        (("--steps", "1"), 1),
        (("--draft-tokens", "2"), 2),
        (("--no-draft",), 0),
        (("--speculative-num-steps", "2"), 2),
    ],
)
def test_explicit_flags_beat_the_file(cli: Cli, config: str, flags: tuple[str, ...], draft_tokens: int) -> None:
    asked = ("generate", "--config", config, "--max-tokens", "24", "--json", "--prompt", "the quick brown fox")
    assert drafted(cli(*asked, *flags)) == draft_tokens


@pytest.mark.parametrize(
    ("flags", "shape"),
    [
        (("--max-batch", "1"), (3, 1, 3)),
        (("--max-batch", "2"), (2, 2, 4)),
        (("--max-batch", "3"), (None, None, None)),
        ((), (None, None, None)),  # 16 together, which the largest entry comes nearest
        (("--max-batch", "2", "--steps", "1", "--topk", "1"), (1, 1, None)),
    ],
)
def test_a_server_takes_the_shape_for_as_many_requests_as_it_runs_together(
    cli: Cli, config: str, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], shape: tuple[int | None, ...]
) -> None:
    taken: list[dict[str, Any]] = []
    monkeypatch.setattr("slipstream.serve.http.server.run", lambda http, engine: taken.append(engine.llm))
    assert cli("serve", "--config", config, *flags).code == 0
    (llm,) = taken
    assert (llm["steps"], llm["topk"], llm["draft_tokens"]) == shape
    assert (llm["draft"] is None) == (shape[0] is None)  # the plain entry loads no draft


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stepz = 3", "the key stepz is unknown; there are model, draft, steps"),
        ("[batch.2]\nmodel = 'x'", "[batch.2]: the key model is unknown; there are steps"),
        ("[batch.two]\nsteps = 1", "[batch.two] is no batch size"),
        ("steps = '3'", "steps is a whole number, not '3'"),
        ("steps = true", "steps is a whole number, not True"),
        ("steps = 3\ndraft_tokens = 5", "a chain (topk 1) verifies exactly its steps"),
        ("steps = ", "is not TOML"),
    ],
)
def test_a_wrong_file_is_one_sentence(cli: Cli, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    outcome = cli("generate", "--config", str(path), "--prompt", "x")
    assert (outcome.code, outcome.out, len(outcome.errors)) == (2, "", 1)
    assert said in outcome.errors[0]


def test_a_file_that_is_not_there_is_one_sentence(cli: Cli) -> None:
    outcome = cli("generate", "--config", "nowhere.toml", "--prompt", "x")
    assert outcome.code == 2
    assert "--config nowhere.toml does not exist" in outcome.errors[0]
