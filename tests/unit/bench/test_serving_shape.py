"""A shape's folders read back as the shape, and its tokenizer as its numbers."""

from pathlib import Path

import pytest

from slipstream.bench.serving.bare import Subject, beside
from slipstream.bench.serving.shape import made_up_tokenizer, write_shape
from slipstream.bench.shapes import FULL_SHAPES, full_shape
from slipstream.config.draft import CaptureConvention
from slipstream.draft.checkpoint import read_draft_config
from slipstream.runner.load import read_model_config
from slipstream.text.tokenizer import load_tokenizer


@pytest.mark.parametrize("name", [name for name in FULL_SHAPES if "70b" not in name])
def test_every_shape_is_read_back_from_its_folders(name: str, tmp_path: Path) -> None:
    full = full_shape(name)
    target, draft = write_shape(full, tmp_path)
    config = read_model_config(target)
    assert config == full.target
    found = read_draft_config(draft, target=config, convention=CaptureConvention.AUTO)
    assert (found.captures, found.draft_vocab_size) == (full.draft.captures, full.draft.draft_vocab_size)
    assert found.feature_size == full.draft.feature_size
    sizes = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size")
    assert [getattr(found.body, each) for each in sizes] == [getattr(full.draft.body, each) for each in sizes]
    assert load_tokenizer(target).vocab_size == full.target.vocab_size


def test_ids_become_text_and_the_same_ids_again() -> None:
    tokenizer = made_up_tokenizer(128)
    text = tokenizer.decode([7, 127, 0, 7])
    assert text == " 7 127 0 7"
    assert tokenizer.encode(text).ids == [7, 127, 0, 7]


def subject(steps: int = 2) -> Subject:
    return Subject(
        shape="tiny",
        steps=steps,
        acceptance=(0.5,),
        device="cpu",
        dtype="float32",
        tp=1,
        draft_tp="auto",
        input_len=32,
        max_tokens=36,
        batches=(1, 8),
    )


def test_bare_cycles_pass_through_the_contexts_of_the_answers() -> None:
    arguments = subject().latency_arguments
    assert subject().accept_length == 1.75
    assert arguments[arguments.index("--cycles") + 1] == "20"  # 35 tokens after the first
    assert arguments[arguments.index("--batch") + 1] == "1,8"


def test_what_serving_adds_is_taken_from_the_accept_length_that_was_seen() -> None:
    def bare(cycle_ms: float) -> list[dict[str, object]]:
        common = {"settings": {}, "fingerprint": "f", "hardware": "h", "torch": "t"}
        return [
            {"steps": 0, "batch": 1, "cycle_ms": 1.0, **common},
            {"steps": 2, "batch": 1, "cycle_ms": cycle_ms, **common},
        ]

    row = {"max_concurrency": 1, "accept_length": 2.0, "mean_tpot_ms": 2.2, "mean_itl_ms": 4.4}
    found = beside(subject(), row, bare(3.0), bare(5.0))
    assert (found["bare_cycle_before_ms"], found["bare_cycle_after_ms"], found["bare_cycle_ms"]) == (3.0, 5.0, 4.0)
    assert found["bare_tpot_ms"] == 2.0
    assert found["tpot_over_bare"] == pytest.approx(0.1)
    assert found["chunk_over_bare"] == pytest.approx(0.1)
    left_out = beside(subject(), {**row, "max_concurrency": 8}, bare(3.0), bare(5.0))
    assert (left_out["bare_cycle_ms"], left_out["tpot_over_bare"]) == (None, None)
    plain = beside(subject(0), {**row, "accept_length": None}, bare(3.0), bare(5.0))
    assert plain["tpot_over_bare"] == pytest.approx(1.2)
