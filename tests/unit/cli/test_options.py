"""Shared options: SGLang's names with SGLang's meaning; what contradicts itself is refused."""

import pytest

from tests.unit.cli.world import PROMPTS, Cli, World


def with_draft(world: World, *arguments: str) -> tuple[str, ...]:
    asked = ("--prompts", world.prompts, "--max-tokens", "16", "--json")
    return ("generate", "--model", world.model, "--draft", world.draft, *asked, *arguments)


def test_sglangs_names_mean_what_they_mean_in_sglang(cli: Cli, world: World):
    theirs = cli(
        *("generate", "--model-path", world.model, "--speculative-draft-model-path", world.draft),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "13"),
        *("--prompts", world.prompts, "--max-tokens", "16", "--json"),
    ).objects
    ours = cli(*with_draft(world, "--steps", "3", "--topk", "4", "--draft-tokens", "12")).objects
    assert [each["speculation"] for each in theirs] == [each["speculation"] for each in ours]
    counts = theirs[0]["speculation"]
    assert counts["proposed"] <= 12 * counts["cycles"]
    assert counts["proposed"] > 11 * (counts["cycles"] - 3)


def test_a_chain_of_sglang_counts_its_root(cli: Cli, world: World):
    theirs = cli(*with_draft(world, "--speculative-num-draft-tokens", "4")).objects
    assert len(theirs[0]["speculation"]["acceptance_by_position"]) <= 3
    assert cli(*with_draft(world, "--steps", "3", "--speculative-num-draft-tokens", "4")).code == 0


def test_both_spellings_may_agree(cli: Cli, world: World):
    assert (
        cli(*with_draft(world, "--steps", "3", "--speculative-num-steps", "3", "--model-path", world.model)).code == 0
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "3", "--speculative-num-steps", "4"], "--steps 3 contradicts --speculative-num-steps 4"),
        (["--topk", "2", "--speculative-eagle-topk", "3"], "--topk 2 contradicts"),
        (["--model-path", "elsewhere"], "--model"),
        (["--speculative-draft-model-path", "elsewhere"], "--draft"),
        (["--draft-tokens", "4", "--speculative-num-draft-tokens", "4"], "counts the root"),
        (["--steps", "3", "--speculative-num-draft-tokens", "3"], "counts the root"),
        (["--speculative-num-draft-tokens", "0"], "counts the root"),
        (["--steps", "3", "--draft-tokens", "5"], "chain"),
        (["--steps", "3", "--topk", "2", "--draft-tokens", "2"], "between steps"),
        (["--steps", "0", "--topk", "2"], "plain decoding"),
        (["--steps", "-1"], "not -1"),
        (["--steps", "17"], "not 17"),
        (["--topk", "0"], "not 0"),
        (["--no-draft"], "--no-draft contradicts the draft"),
        (["--prompt", "fox"], "both given"),
        (["--graph-sizes", "1,two"], "--graph-sizes is numbers with commas between them"),
        (["--graph-sizes", "1,2", "--device", "cpu"], "leave it out"),
    ],
)
def test_contradictions_are_refused_in_one_line(cli: Cli, world: World, arguments: list[str], said: str):
    outcome = cli(*with_draft(world, *arguments))
    assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (2, "", 1)
    assert said in outcome.errors[0]


@pytest.mark.parametrize("arguments", [["--steps", "2"], ["--topk", "2"], ["--draft-tokens", "2"]])
def test_a_shape_without_a_draft_is_refused(cli: Cli, world: World, arguments: list[str]):
    for no_draft in ([], ["--no-draft"]):
        outcome = cli("generate", "--model", world.model, "--prompt", PROMPTS[0], *no_draft, *arguments)
        assert (outcome.code, len(outcome.errors)) == (2, 1)


def test_steps_0_is_plain_decoding_with_and_without_a_draft(cli: Cli, world: World):
    plain = cli("generate", "--model", world.model, "--prompt", PROMPTS[0], "--steps", "0", "--json", "--no-draft")
    drafted = cli(*with_draft(world, "--steps", "0"))
    assert plain.objects[0]["speculation"]["proposed"] == drafted.objects[0]["speculation"]["proposed"] == 0
