"""`slipstream doctor` as it is typed: verdict first, exit codes, and a definition for every field of --json."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.doctor_check import few_threads_if_busy
from slipstream.doctor.lossless import DEFINITIONS as LOSSLESS_DEFINITIONS
from slipstream.doctor.report import DEFINITIONS
from tests.unit.cli.world import Cli, World
from tests.unit.doctor.patients import copied

FEW = ("--num-prompts", "4", "--max-tokens", "12")


def keys(found: Any) -> Iterator[str]:
    """Every key of an object, at any depth."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield key
            if key != "definitions":
                yield from keys(value)
    if isinstance(found, list):
        for value in found:
            yield from keys(value)


def test_an_untrained_draft_is_said_to_be_a_stranger_and_ends_with_two(cli: Cli, world: World) -> None:
    outcome = cli("doctor", "--model", world.model, "--draft", world.draft, *FEW)
    assert outcome.code == 2
    assert outcome.out.startswith("broken: this draft does not belong to this target")
    for words in ("as declared", "layers +1", "(control)", "acceptance by position", "compatibility", "environment"):
        assert words in outcome.out


def test_json_has_the_verdict_the_evidence_and_a_definition_of_every_field(cli: Cli, world: World) -> None:
    outcome = cli("doctor", "check", "--model", world.model, "--draft", world.draft, *FEW, "--json")
    (found,) = outcome.objects
    assert found["exit_code"] == outcome.code == 2
    assert found["wiring"]["outcome"] == "another target's draft"
    first, *others = found["wiring"]["hypotheses"]
    assert (first["name"], first["layers"], first["difference"]) == ("as declared", [2, 4, 5], None)
    assert all({"low", "mean", "high"} == set(each["difference"]) for each in others if each["cross_entropy"])
    assert set(keys(found)) <= set(DEFINITIONS)
    assert found["definitions"] == DEFINITIONS
    only_with_gpus = {"index", "capability", "free_gib", "total_gib"}
    only_when_wrong = {"slipstream", "sglang", "vllm"}
    assert set(DEFINITIONS) - set(keys(found)) == only_with_gpus | only_when_wrong


def test_a_draft_that_cannot_be_loaded_is_broken_by_the_finding_that_says_why(
    cli: Cli, world: World, tmp_path: Path
) -> None:
    folder = copied(Path(world.draft), tmp_path / "draft", config={"fc_norm": True})
    outcome = cli("doctor", "--model", world.model, "--draft", str(folder), *FEW)
    assert outcome.code == 2
    assert outcome.out.startswith("broken: norm flags: the config sets fc_norm but the checkpoint has no such norm")


def test_a_planted_mistake_is_shown_as_such(cli: Cli, world: World) -> None:
    outcome = cli("doctor", "--model", world.model, "--draft", world.draft, *FEW, "--plant", "layers+1")
    assert "(with layers+1 planted):" in outcome.out
    assert "3,5,6" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--draft", "x"], "no model was named; pass --model"),
        (["--model", "{model}"], "no draft ships for"),
        (["--model", "{model}", "--draft", "{draft}", "--draft-layers", "1,x"], "--draft-layers takes numbers"),
        (
            ["--model", "{model}", "--draft", "{draft}", "--draft-layers", "1,1,2"],
            "must name different layers within 0..8",
        ),
        (["--model", "{model}", "--draft", "{draft}", "--draft-d2t", "both"], "use offsets, ids, mask, first"),
        (["--model", "{model}", "--draft", "{draft}", "--device", "tpu"], "device"),
        (["--model", "{model}", "--draft", "{draft}", "--prompts", "none.txt"], "does not exist"),
    ],
)
def test_a_users_mistake_is_one_sentence(cli: Cli, world: World, arguments: list[str], words: str) -> None:
    outcome = cli("doctor", *(each.format(model=world.model, draft=world.draft) for each in arguments))
    assert outcome.code == 2
    assert words in outcome.out + outcome.err
    assert "Traceback" not in outcome.err


def test_the_group_lists_its_verbs(cli: Cli) -> None:
    outcome = cli("doctor", "--help")
    assert outcome.code == 0
    assert all(verb in outcome.out for verb in ("nccl", "check", "lossless"))


def paths(world: World) -> tuple[str, ...]:
    return ("--model", world.model, "--draft", world.draft, "--prompts", world.prompts)


@pytest.mark.parametrize(("load", "cores", "expected"), [(0.2, 4, 4), (3.4, 4, 1), (9.0, 4, 1), (2.5, 4, 2)])
def test_a_busy_machine_is_examined_with_fewer_threads(
    monkeypatch: pytest.MonkeyPatch, load: float, cores: int, expected: int
) -> None:
    used = [4]
    monkeypatch.setattr("slipstream.cli.doctor_check.os.getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr("slipstream.cli.doctor_check.torch.get_num_threads", lambda: used[-1])
    monkeypatch.setattr("slipstream.cli.doctor_check.torch.set_num_threads", used.append)
    with few_threads_if_busy(cores):
        assert used[-1] == expected
    assert used[-1] == 4


LOSSLESS = ("--max-tokens", "12", "--chain", "2", "--tree", "2x2", "--seed", "3")


def test_speculation_changes_no_answer_and_that_is_said_first(cli: Cli, world: World) -> None:
    outcome = cli(
        "doctor", "lossless", "--model", world.model, "--draft", world.draft, *LOSSLESS, "--prompts", world.prompts
    )
    assert outcome.code == 0
    assert outcome.out.startswith("healthy: all 16 answers of 4 speculative runs")
    assert "tree of 2 steps, topk 2" in outcome.out


def test_lossless_json_defines_every_field(cli: Cli, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch)
    outcome = cli("doctor", "lossless", *LOSSLESS, *paths(world), "--json")
    (found,) = outcome.objects
    assert set(keys(found)) == set(LOSSLESS_DEFINITIONS)
    assert found["exit_code"] == outcome.code == 2


def test_a_difference_is_shown_with_its_place_and_both_tokens(
    cli: Cli, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch)
    outcome = cli(
        "doctor", "lossless", "--model", world.model, "--draft", world.draft, *LOSSLESS, "--prompts", world.prompts
    )
    assert outcome.code == 2
    assert "prompt 1, token 3: plain has " in outcome.out
    assert "speculative has 5 " in outcome.out


def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every speculative answer to the second prompt have token 5 in its fourth place."""
    from dataclasses import replace

    import slipstream

    real = slipstream.LLM.chat

    def chat(self, *args, **kwargs):
        found = real(self, *args, **kwargs)
        if self.speculation.steps:
            ids = list(found[1].token_ids)
            ids[3] = 5
            found[1] = replace(found[1], token_ids=tuple(ids))
        return found

    monkeypatch.setattr("slipstream.serve.llm.LLM.chat", chat)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tree", "3"], "--tree takes STEPSxTOPK"),
        (["--tree", "axb"], "--tree takes STEPSxTOPK"),
        (["--chain", "0"], "plain decoding"),
        (["--temperature", "0", "--seed", "1"], "leave one of them out"),
    ],
)
def test_a_lossless_run_that_makes_no_sense_is_refused(
    cli: Cli, world: World, arguments: list[str], words: str
) -> None:
    outcome = cli("doctor", "lossless", "--model", world.model, "--draft", world.draft, *arguments)
    assert (outcome.code, words in outcome.err) == (2, True)
