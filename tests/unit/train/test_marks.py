"""Answers and checkpoints know what they belong to."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.parallel.group import SoloGroup
from slipstream.train.conversations import Conversation, load, pack, save
from slipstream.train.rate import Progress
from slipstream.train.state import read_state, restore, save_state
from tests.tiny_engine import tiny_draft, tiny_target


def test_answers_of_another_model_are_not_reused(tmp_path: Path) -> None:
    file = tmp_path / "conversations.safetensors"
    save(pack([Conversation(tokens=[1, 2, 3], num_prompt=1)]), file, target="one")
    assert load(file, target="one").tokens_N.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="answers of another model"):
        load(file, target="other")


def test_a_checkpoint_is_not_resumed_as_a_draft_with_other_options(tmp_path: Path) -> None:
    draft = tiny_draft(tiny_target()).model
    optimizer = torch.optim.AdamW(draft.parameters())
    save_state(tmp_path / "state.pt", draft, optimizer, Progress(step=3), torch.arange(80))
    state = read_state(tmp_path / "state.pt")
    assert restore(state, draft, optimizer).step == 3
    config = replace(draft.config, norm_output=True)
    other = Eagle3Draft(config, group=SoloGroup(), max_position=64)
    with pytest.raises(ValueError, match="with other options"):
        restore(state, other, optimizer)
