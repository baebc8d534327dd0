"""A draft whose checkpoint says its wiring wrongly serves as well as a right one, once the wiring is given."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream import LLM, SamplingParams
from slipstream.config.draft import DraftWiring, MapReading
from tests.unit.cli.world import PROMPTS, World, make_world, run

PARAMS = SamplingParams(max_tokens=16)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def wrong(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The world's draft with fc's blocks and ids in reverse, and a zeroed map."""
    folder, source = tmp_path_factory.mktemp("wrong"), Path(world.draft)
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eagle_aux_hidden_state_layer_ids": [5, 4, 2]}))
    tensors = load_file(source / "model.safetensors")
    low, middle, high = tensors["fc.weight"].split(32, dim=1)
    tensors["fc.weight"] = torch.cat((high, middle, low), dim=1).contiguous()
    tensors["d2t"] = torch.zeros_like(tensors["d2t"])
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def statistics(world: World, draft: str, **settings) -> list:
    llm = LLM(world.model, draft=draft, **settings)
    return [(each.token_ids, each.statistics) for each in llm.generate(list(PROMPTS), PARAMS)]


def test_a_given_wiring_serves_as_the_right_checkpoint_does(world: World, wrong: str) -> None:
    wiring = DraftWiring(layers=(5, 4, 2), map_reading=MapReading.MASK)
    assert statistics(world, wrong, draft_wiring=wiring) == statistics(world, world.draft)


def test_without_it_the_checkpoint_is_refused(world: World, wrong: str) -> None:
    with pytest.raises(ValueError, match="ascend"):
        LLM(world.model, draft=wrong)


def test_a_wiring_without_a_draft_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="there is no draft"):
        LLM(world.model, draft=None, draft_wiring=DraftWiring(layers=(1, 2, 3)))


def test_generate_takes_it_as_flags(capsys: pytest.CaptureFixture[str], world: World, wrong: str) -> None:
    common = ("generate", "--model", world.model, "--prompt", PROMPTS[0], "--raw", "--max-tokens", "16", "--json")
    right = run(capsys, *common, "--draft", world.draft).objects
    flags = ("--draft-layers", "5,4,2", "--draft-d2t", "mask", "--no-draft-norm-output")
    given = run(capsys, *common, "--draft", wrong, *flags).objects
    assert [each["speculation"] for each in given] == [each["speculation"] for each in right]
    flags = ("--draft-layers", "5,4,2", "--draft-d2t", "mask", "--draft-norm-output")
    other = run(capsys, *common, "--draft", wrong, *flags).objects
    assert [each["token_ids"] for each in other] == [each["token_ids"] for each in right]
