"""`slipstream train` refuses what it cannot do before anything is loaded."""

import pytest

from tests.unit.cli.world import Cli, World


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "tpu"], "'tpu' is unknown"),
        (["--temperatures", "0,-1"], "0 (greedy) or more"),
        (["--temperatures", "warm"], "no list of numbers"),
        (["--steps", "3", "--epochs", "1"], "exactly one of"),
        (["--cap", "many"], "SET=N"),
    ],
)
def test_a_bad_option_is_one_sentence(cli: Cli, world: World, tmp_path, arguments: list[str], said: str):
    outcome = cli("train", "--model", world.model, "--out", str(tmp_path), "--prompts", world.prompts, *arguments)
    assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (2, "", 1)
    assert said in outcome.errors[0]


@pytest.mark.parametrize(
    "option",
    ["--steps", "--minutes", "--epochs", "--ttt-steps", "--log-every", "--answer-batch", "--max-prompts", "--max-eval"],
)
def test_a_number_out_of_range_is_refused_by_the_options_name(cli: Cli, world: World, tmp_path, option: str):
    outcome = cli("train", "--model", world.model, "--out", str(tmp_path), "--prompts", world.prompts, option, "0")
    assert (outcome.code, outcome.out) == (2, "")
    assert option in outcome.err
