"""`slipstream profile` on a tiny model: one object, its tables, its trace, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.bench.definitions import undefined
from slipstream.bench.verify_curve import CURVE_TOKENS
from slipstream.cli.profile_tables import CALLS, CURVE, FIT, STAGES, print_profile
from tests.unit.bench.traces import events_of, nesting
from tests.unit.cli.world import Cli, Outcome, World

FEW = ("--device", "cpu", "--cycles", "4", "--rounds", "1", "--context", "16", "--steps", "2")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("profile")
    return folder / "profile.json", folder / "trace.json"


@pytest.fixture
def profiled(cli: Cli, world: World, files: tuple[Path, Path]) -> dict[str, Any]:
    """Of real weights; run once."""
    out, trace = files
    if not out.exists():
        outcome = cli(
            *("profile", "--model", world.model, "--draft", world.draft, *FEW, "--limit", "2", "--max-tokens", "8"),
            *("--out", str(out), "--trace", str(trace), "--json"),
        )
        assert outcome.code == 0, outcome.err
        assert outcome.objects == [json.loads(out.read_text())]
    return json.loads(out.read_text())


def test_every_leaf_has_a_definition_and_every_definition_a_leaf(profiled: dict[str, Any]) -> None:
    definitions = profiled.pop("definitions")
    assert undefined(profiled, definitions) == []
    assert set(definitions) <= names_in(profiled)
    assert all(definitions.values())


def names_in(found: Any) -> set[str]:
    if isinstance(found, dict):
        return set(found).union(*(names_in(value) for value in found.values()))
    return set().union(*(names_in(each) for each in found)) if isinstance(found, list) else set()


def test_the_planner_finds_the_curve_and_the_draft_step(profiled: dict[str, Any]) -> None:
    assert [each["tokens"] for each in profiled["verify_curve"]] == list(CURVE_TOKENS)
    assert all(each["ms"] > 0 for each in profiled["verify_curve"])
    assert profiled["draft_step_ms"] > 0


def test_the_numbers_agree_with_each_other(profiled: dict[str, Any]) -> None:
    stages = {each["stage"]: each["stage_ms"] for each in profiled["stages"]}
    assert list(stages) == ["extend", "draft 1", "draft 2", "verify", "accept", "host", "unexplained"]
    assert sum(stages.values()) == pytest.approx(profiled["wall_ms"])
    assert profiled["stage_sum_ms"] + stages["unexplained"] == pytest.approx(profiled["wall_ms"])
    assert profiled["cycle_ratio"] == profiled["break_even_accept_length"]
    accepted = profiled["acceptance"]
    assert profiled["gain"] == pytest.approx(accepted["accept_length_at_steps"] / profiled["cycle_ratio"] - 1)
    for point in profiled["step_fit"]:
        assert point["fitted_ms"] == pytest.approx(profiled["fit_a_ms"] + profiled["fit_b_ms"] * point["steps"])


def test_cost_and_acceptance_are_apart(profiled: dict[str, Any]) -> None:
    accepted = profiled["acceptance"]
    assert accepted["num_answers"] == profiled["num_prompts"] == 2
    assert [each["steps"] for each in accepted["accept_lengths"]] == [0, 1, 2, 3, 4, 5]
    assert profiled["decreed_accept_length"] == pytest.approx(1 + 0.7 + 0.7 * 0.62)


def test_thin_evidence_is_inconclusive_and_said_first(profiled: dict[str, Any]) -> None:
    assert profiled["verdict"] == "INCONCLUSIVE"
    assert profiled["sentences"][0].startswith("INCONCLUSIVE: only 4 cycles were timed")


def test_the_trace_nests_and_names_the_stages(profiled: dict[str, Any], files: tuple[Path, Path]) -> None:
    events = events_of(json.loads(files[1].read_text()))
    held = {(child["name"], parent["name"][:5] if parent else None) for child, parent in nesting(events)}
    assert {(name, "cycle") for name in ("draft", "verify", "extend", "accept", "host")} <= held
    assert ("draft 2", "draft") in held
    assert sum(event["name"].startswith("cycle ") for event in events) == 4


def test_tables_show_the_same_fields_and_say_what_each_means(
    profiled: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    print_profile(profiled)
    printed = capsys.readouterr().out
    assert printed.startswith("INCONCLUSIVE")
    joined = " ".join(printed.split())
    for name in (*CURVE, *STAGES, *FIT, "accept_length_at_steps", "wall_ms", "gain"):
        assert " ".join(f"{name} = {profiled['definitions'][name]}".split()) in joined
    assert not any(f"{name} =" in printed for name in CALLS if name not in STAGES)  # one rank sends nothing
    for sentence in profiled["sentences"]:
        assert " ".join(sentence.split()) in joined


def test_random_weights_have_costs_and_no_acceptance(cli: Cli) -> None:
    outcome = cli("profile", "--shape", "tiny", *FEW, "--acceptance", "0", "--inject", "host=1", "--json")
    (found,) = outcome.objects
    assert found["acceptance"] is None
    assert found["gain"] is None
    assert found["decreed_accept_length"] == 1
    assert found["bare_cycle_ms"] is None
    assert found["injected_ms"] == {"extend": 0, "draft": 0, "verify": 0, "host": 1}
    assert "the weights are random" in found["sentences"][0]
    assert (
        undefined({name: value for name, value in found.items() if name != "definitions"}, found["definitions"]) == []
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "no model was named"),
        (("--shape", "tiny", "--model", "x"), "--shape tiny is random weights"),
        (("--shape", "huge"), "no shape is called huge"),
        (("--shape", "tiny", "--steps", "0"), "there is no cycle to split"),
        (("--shape", "tiny", "--acceptance", "2"), "--acceptance 2"),
        (("--shape", "tiny", "--acceptance", "x"), "--acceptance is numbers"),
        (("--shape", "tiny", "--inject", "sampling=3"), "--inject sampling=3"),
        (("--shape", "tiny", "--context", "4000"), "lower --context or --cycles"),
        (("--shape", "tiny", "--prompts", "x"), "--prompts needs real weights"),
        (("--shape", "tiny", "--inject-allreduce-us", "5"), "--inject-allreduce-us"),
    ],
)
def test_what_cannot_be_profiled_is_said(arguments: tuple[str, ...], sentence: str, cli: Cli) -> None:
    outcome: Outcome = cli("profile", "--device", "cpu", *arguments)
    assert (outcome.code, len(outcome.errors)) == (2, 1)
    assert sentence in outcome.errors[0]
