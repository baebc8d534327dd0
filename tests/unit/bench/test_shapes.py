"""Shapes to time without a checkpoint."""

from pathlib import Path

import pytest

from slipstream.bench.shapes import FULL_SHAPES, full_shape
from slipstream.config.draft import CaptureConvention
from slipstream.draft.checkpoint import read_draft_config

SHIPPED = Path(__file__).parents[3] / "drafts" / "smollm2-135m-eagle3"


def test_the_shipped_draft_has_the_shape_that_is_timed_in_its_name() -> None:
    full = full_shape("smollm2-135m")
    shipped = read_draft_config(SHIPPED, target=full.target, convention=CaptureConvention.AUTO)
    assert (shipped.captures, shipped.draft_vocab_size) == (full.draft.captures, full.draft.draft_vocab_size)
    body, theirs = shipped.body, full.draft.body
    for name in ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"):
        assert getattr(body, name) == getattr(theirs, name)


@pytest.mark.parametrize("name", FULL_SHAPES)
def test_heads_divide_and_a_draft_reads_its_target(name: str) -> None:
    full = full_shape(name)
    assert full.target.num_heads % full.target.num_kv_heads == 0
    assert full.draft.target_hidden_size == full.target.hidden_size
    assert full.draft.captures[-1] <= full.target.num_layers
    assert not full.draft.body.qk_norm
