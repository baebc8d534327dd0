"""`slipstream demo`: one table, one sentence, and exit code 1 when a text differs."""

from dataclasses import replace

import pytest

from slipstream.cli import demo as verb
from slipstream.flow.output import Statistics
from slipstream.serve.completion import Completion
from tests.unit.cli.world import Cli, World


def completion(token_ids: tuple[int, ...] = (1, 2, 3, 4, 5), *, decode_s: float = 2.0, kept: int = 1) -> Completion:
    counts = Statistics()
    for _ in range(4 // kept):
        counts.record(kept=kept, depth=4, proposed=4, trimmed=False)
    return Completion(
        prompt="a",
        text="b",
        token_ids=token_ids,
        finish_reason="stop",
        num_prompt_tokens=3,
        num_cached_tokens=0,
        seed=1,
        runs=(kept,) * (4 // kept),
        statistics=counts,
        prefill_s=0.1,
        decode_s=decode_s,
    )


PAIR = verb.Pair(task="math", plain=completion(), fast=completion(decode_s=1.0, kept=2))


def test_three_prompts_are_answered_twice_and_compared(cli: Cli, world: World):
    outcome = cli("demo", "--model", world.model, "--draft", world.draft, "--max-tokens", "10")
    assert outcome.code == 0
    assert outcome.out.count("[plain decoding]") == outcome.out.count("[speculative decoding") == 3
    rows = [line.split()[0] for line in outcome.out.splitlines() if line.rstrip().endswith(" yes")]
    assert rows == [*verb.TASKS, "all"]
    assert outcome.out.splitlines()[-1].startswith("The same text")


def test_a_model_without_a_draft_is_refused_before_it_is_loaded(cli: Cli, world: World):
    outcome = cli("demo", "--model", world.model)
    assert (outcome.code, outcome.out, len(outcome.errors)) == (2, "", 1)
    assert "--draft" in outcome.errors[0]


def test_a_text_that_differs_exits_1(cli: Cli, world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verb.Pair, "identical", False)
    outcome = cli("demo", "--model", world.model, "--draft", world.draft, "--max-tokens", "4")
    assert outcome.code == 1
    assert "this is a bug" in outcome.out.splitlines()[-1]


def test_pairs_are_identical_only_token_for_token():
    assert PAIR.identical
    assert not replace(PAIR, fast=completion((1, 2, 3, 4, 6))).identical


def test_the_last_line_says_what_was_seen_and_what_to_try():
    assert "2.00 times as fast: a cycle emitted 2.00 tokens" in verb.verdict([PAIR], "m")
    assert "slipstream chat --model m" in verb.verdict([PAIR], "m")
    slower = replace(PAIR, fast=completion(decode_s=4.0))
    assert "0.50 times as fast" in verb.verdict([slower], "m")
    assert "slipstream bench cpu" in verb.verdict([slower], "m")
    differs = replace(PAIR, fast=completion((1, 2)))
    assert verb.verdict([differs, PAIR], "m").startswith("Only 1 of 2 texts are identical")
