"""`slipstream generate` end to end on a tiny model."""

import json
import re
from pathlib import Path

import pytest

from tests.unit.cli.world import PROMPTS, Cli, World

FIELDS = {
    "prompt": str,
    "index": int,
    "text": str,
    "token_ids": list,
    "finish_reason": str,
    "usage": {"prompt_tokens": int, "cached_tokens": int, "completion_tokens": int},
    "speculation": {
        "cycles": int,
        "proposed": int,
        "accepted": int,
        "emitted": int,
        "not_drafted": int,
        "accept_length": float,
        "accept_rate": float,
        "acceptance_by_position": list,
        "histogram": list,
    },
    "timing": {"load_s": float, "prefill_s": float, "decode_s": float, "decode_tokens_per_s": float},
}
TOKEN_FIELDS = {"token_id": int, "raw_logprob": float, "processed_logprob": float}
TOKEN = {**TOKEN_FIELDS, "top": list}


def of_schema(found: object, schema: object) -> bool:
    if isinstance(schema, dict):
        assert isinstance(found, dict)
        return list(found) == list(schema) and all(of_schema(found[key], schema[key]) for key in schema)
    assert isinstance(schema, type)
    return isinstance(found, schema)


def generate(world: World, *arguments: str) -> tuple[str, ...]:
    return ("generate", "--model", world.model, "--max-tokens", "24", *arguments)


def test_json_has_the_documented_fields_and_nothing_else_on_stdout(cli: Cli, world: World):
    outcome = cli(*generate(world, "--draft", world.draft, "--prompts", world.prompts, "--json"))
    assert outcome.code == 0
    assert outcome.err == ""
    assert len(outcome.objects) == len(PROMPTS)
    for found, prompt in zip(outcome.objects, PROMPTS, strict=True):
        assert of_schema(found, FIELDS)
        assert prompt in found["prompt"]
        counts = found["speculation"]
        assert counts["emitted"] == len(found["token_ids"]) - 1 == counts["accepted"] + counts["cycles"]
        assert found["usage"]["completion_tokens"] == len(found["token_ids"])
        assert sum(counts["histogram"]) == counts["cycles"]


@pytest.mark.parametrize("shape", [["--steps", "3"], ["--steps", "3", "--topk", "4", "--draft-tokens", "12"]])
@pytest.mark.parametrize("sampling", [[], ["--temperature", "0.8", "--top-p", "0.9", "--seed", "5"]])
def test_speculative_ids_equal_plain_ones(cli: Cli, world: World, shape: list[str], sampling: list[str]):
    common = generate(world, "--prompts", world.prompts, "--json", *sampling)
    plain = cli(*common, "--no-draft").objects
    fast = cli(*common, "--draft", world.draft, *shape).objects
    assert [each["token_ids"] for each in fast] == [each["token_ids"] for each in plain]
    assert [each["text"] for each in fast] == [each["text"] for each in plain]
    assert sum(each["speculation"]["accepted"] for each in fast) > 0
    assert all(each["speculation"]["accept_length"] == 1 for each in plain)


def test_every_sampling_option_reaches_the_answer(cli: Cli, world: World):
    penalties = ["--presence-penalty", "0.5", "--frequency-penalty", "0.4", "--repetition-penalty", "1.1"]
    others = ["--logit-bias", "40=2.5", "--logit-bias", "41=-100", "--bad-word", "th", "--min-tokens", "12"]
    common = generate(world, "--prompts", world.prompts, "--json", "--temperature", "0.9", "--seed", "5")
    asked = (*common, *penalties, *others, "--logprobs", "2", "--n", "2")
    plain, fast = cli(*asked, "--no-draft").objects, cli(*asked, "--draft", world.draft).objects
    assert [each["token_ids"] for each in fast] == [each["token_ids"] for each in plain]
    assert [each["index"] for each in fast] == [0, 1] * len(PROMPTS)
    for each, other in zip(fast, plain, strict=True):
        assert len(each["token_ids"]) >= 12
        assert [token["token_id"] for token in each["logprobs"]] == each["token_ids"]
        for token, theirs in zip(each["logprobs"], other["logprobs"], strict=True):
            assert of_schema(token, TOKEN)
            assert all(of_schema(top, {**TOKEN_FIELDS, "processed_logprob": object}) for top in token["top"])
            assert len(token["top"]) == 2
            assert token["raw_logprob"] == pytest.approx(theirs["raw_logprob"], abs=1e-4)
            assert token["processed_logprob"] == pytest.approx(theirs["processed_logprob"], abs=1e-4)
    assert 41 not in [token for each in fast for token in each["token_ids"]]
    without = cli(*common, "--no-draft").objects
    assert [each["token_ids"] for each in without] != [each["token_ids"] for each in plain[::2]]
    assert "logprobs" not in without[0]


def test_n_answers_are_numbered_on_the_screen(cli: Cli, world: World):
    outcome = cli(*generate(world, "--prompt", PROMPTS[0], "--n", "2", "--no-draft"))
    assert f"{PROMPTS[0]} (1 of 2)" in outcome.out
    assert f"{PROMPTS[0]} (2 of 2)" in outcome.out


def test_a_seed_makes_sampled_answers_reproducible_in_any_company(cli: Cli, world: World):
    sampled = ("--temperature", "1", "--json", "--draft", world.draft)
    first = cli(*generate(world, "--prompts", world.prompts, *sampled, "--seed", "7")).objects
    alone = cli(*generate(world, "--prompt", PROMPTS[2], *sampled, "--seed", "7")).objects
    other = cli(*generate(world, "--prompt", PROMPTS[2], *sampled, "--seed", "8")).objects
    assert alone[0]["token_ids"] == first[2]["token_ids"] != other[0]["token_ids"]


def test_a_random_seed_is_reported_and_gives_the_same_answer_again(cli: Cli, world: World):
    drawn = cli(*generate(world, "--prompt", PROMPTS[0], "--temperature", "1", "--no-draft")).out
    seed = drawn.splitlines()[0].rpartition("(seed ")[2].rstrip(")")
    again = cli(*generate(world, "--prompt", PROMPTS[0], "--temperature", "1", "--no-draft", "--seed", seed)).out
    assert again.splitlines()[:3] == drawn.splitlines()[:3]


def test_json_keeps_the_order_of_the_prompts_when_answers_end_out_of_order(cli: Cli, world: World):
    one_by_one = cli(*generate(world, "--prompts", world.prompts, "--no-draft", "--json", "--max-batch", "1"))
    together = cli(*generate(world, "--prompts", world.prompts, "--no-draft", "--json", "--max-batch", "3"))
    assert [each["token_ids"] for each in together.objects] == [each["token_ids"] for each in one_by_one.objects]


def test_answers_and_a_table_by_name_are_printed_without_json(cli: Cli, world: World):
    outcome = cli(*generate(world, "--draft", world.draft, "--prompts", world.prompts))
    assert outcome.code == 0
    words = " ".join(outcome.out.split())
    assert all(f"[{number}/4] {prompt}" in words for number, prompt in enumerate(PROMPTS, start=1))
    assert all(name in words for name in ("tokens", "accept", "acceptance", "cycles", "tok/s"))
    assert "\x1b" not in outcome.out


def test_raw_continues_the_text_without_the_template(cli: Cli, world: World):
    templated = cli(*generate(world, "--prompt", PROMPTS[0], "--no-draft", "--json")).objects[0]
    raw = cli(*generate(world, "--prompt", PROMPTS[0], "--no-draft", "--json", "--raw")).objects[0]
    assert raw["prompt"] == PROMPTS[0]
    assert templated["prompt"] == f"user: {PROMPTS[0]}\nassistant:"


def test_messages_go_through_the_template_and_turns_give_their_first(cli: Cli, world: World, tmp_path: Path):
    file = tmp_path / "mixed.jsonl"
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "fox"}]
    lines = [{"messages": messages}, {"turns": ["the dog", "and again"]}]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    found = cli(*generate(world, "--prompts", str(file), "--no-draft", "--json")).objects
    assert [each["prompt"] for each in found] == [
        "system: be brief\nuser: fox\nassistant:",
        "user: the dog\nassistant:",
    ]
    refused = cli(*generate(world, "--prompts", str(file), "--no-draft", "--raw"))
    assert (refused.code, len(refused.errors)) == (2, 1)


def test_a_stop_string_ends_the_answer_before_it(cli: Cli, world: World):
    asked = generate(world, "--prompt", PROMPTS[0], "--json")
    whole = cli(*asked, "--no-draft").objects[0]["text"]
    stop = next(word for word in re.findall("[a-z]{2,}", whole))
    cut = cli(*asked, "--draft", world.draft, "--stop", stop).objects[0]
    assert cut["text"] == whole[: whole.index(stop)]
    assert cut["finish_reason"] == "stop"


def test_a_closed_pipe_ends_quietly(cli: Cli, world: World, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", broken)
    outcome = cli(*generate(world, "--prompt", "fox", "--no-draft", "--json"))
    assert (outcome.code, outcome.err) == (1, "")


def test_a_prompts_file_says_who_goes_first_and_who_speculates(cli: Cli, world: World, tmp_path: Path):
    steps = (0, 2, None, 3)
    lines = [{"prompt": text, "priority": place % 2} for place, text in enumerate(PROMPTS)]
    lines = [line if most is None else {**line, "steps": most} for line, most in zip(lines, steps, strict=True)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ("--draft", world.draft, "--steps", "3", "--max-batch", "1", "--ignore-eos")
    found = cli(*generate(world, *asked, "--prompts", str(path), "--json")).objects
    usual = cli(*generate(world, *asked, "--prompts", world.prompts, "--json")).objects
    assert [each["token_ids"] for each in found] == [each["token_ids"] for each in usual]
    depths = [len(each["speculation"]["acceptance_by_position"]) for each in found]
    assert depths[0] == 0 < depths[1] <= 2 < depths[3] == 3
    shown = cli(*generate(world, *asked, "--prompts", str(path))).out
    numbers = re.findall(r"^\[(\d)/4\]", shown, flags=re.MULTILINE)
    assert numbers == ["1", "3", "2", "4"]


def test_a_prompts_file_that_asks_for_more_steps_than_there_are_is_refused(cli: Cli, world: World, tmp_path: Path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n{"prompt": "two", "steps": 5}\n')
    outcome = cli(*generate(world, "--draft", world.draft, "--steps", "3", "--prompts", str(path)))
    assert outcome.code == 2
    assert "prompt 2 of 2: steps 5 was asked for but a cycle of this engine has 3; lower it" in outcome.errors[0]
    path.write_text('{"prompt": "one", "steps": "5"}\n')
    outcome = cli(*generate(world, "--no-draft", "--prompts", str(path)))
    assert outcome.code == 2
    assert 'has a "steps" that is not a whole number; write one' in outcome.errors[0]


def test_a_file_of_prompts_ends_with_the_acceptance_drift_and_what_it_is(cli: Cli, world: World):
    asked = generate(world, "--prompts", world.prompts)
    last = cli(*asked, "--draft", world.draft, "--steps", "3").out.splitlines()[-1]
    assert re.fullmatch(r"acceptance drift: not known before \d+ drafted cycles, [1-9]\d* so far \(.* over .*\)", last)
    assert "drift" not in cli(*asked, "--no-draft").out
    assert "drift" not in cli(*asked, "--draft", world.draft, "--json").out
    assert "drift" not in cli(*generate(world, "--prompt", "one", "--draft", world.draft)).out
