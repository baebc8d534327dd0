"""Every architecture gives transformers' logits, prefill and step by step."""

import json
from pathlib import Path

import pytest
import torch

from slipstream.attention.dense import DenseAttend
from slipstream.attention.paged import PagedAttend
from slipstream.attention.pool import KVPool, slot_run
from slipstream.attention.sequence import SequenceRows
from slipstream.cache.pages import Pages
from slipstream.config.hf import model_config
from slipstream.flow.span import PageSpan
from slipstream.layers.linear import pack_linears
from slipstream.models.decoder import Decoder
from slipstream.models.registry import load_target
from slipstream.weights.reader import open_source
from tests.tiny import ROPES, tiny_model

TOLERANCE = 1e-4
CPU = torch.device("cpu")

CASES = [
    *[("llama", rope, {}) for rope in ROPES],
    ("llama", "default", {"tie_word_embeddings": True}),
    ("llama", "default", {"attention_bias": True}),
    ("llama", "default", {"num_key_value_heads": 4}),
    ("qwen2", "default", {}),
    ("qwen2", "yarn", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3}),
    ("qwen3", "default", {}),
    ("mistral", "default", {"sliding_window": 9}),
    ("mistral", "default", {"sliding_window": None}),
]


def load(path: Path, *, pack: bool) -> Decoder:
    config = model_config(json.loads((path / "config.json").read_text()))
    target = load_target(config, open_source(path), device=CPU, dtype=torch.float32, max_position=256)
    if pack:
        pack_linears(target)
    return target


@pytest.mark.parametrize(("kind", "rope", "overrides"), CASES)
def test_logits_equal_transformers_in_prefill_and_step_by_step(
    tmp_path: Path, kind: str, rope: str, overrides: dict[str, object]
) -> None:
    theirs = tiny_model(kind, rope=rope, **overrides)
    theirs.save_pretrained(tmp_path)
    tokens = torch.randint(3, 96, (40,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(tokens[None]).logits[0]
        target = load(tmp_path, pack=True)
        prefill = target.logits(target(tokens, DenseAttend(1, 40, device=CPU)).final_TD)
        stepped = step_by_step(target, tokens)
    assert torch.allclose(prefill, expected, atol=TOLERANCE, rtol=0), (prefill - expected).abs().max()
    assert torch.allclose(stepped, expected, atol=TOLERANCE, rtol=0), (stepped - expected).abs().max()


def step_by_step(target: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of every position, one token a forward over pages that are not contiguous."""
    config = target.config
    pages = Pages(32, 4)
    held = [pages.grant(4) for _ in range(6)]
    for span in held[::2]:
        assert span is not None
        pages.give_back(span)
    granted = pages.grant(len(tokens))
    assert granted is not None
    span = PageSpan(pages=granted, page_size=4)
    pool = KVPool(
        num_layers=config.num_layers,
        num_pages=32,
        page_size=4,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=torch.float32,
        device=CPU,
    )
    run, rows = slot_run(span, CPU), []
    for position in range(len(tokens)):
        at = torch.tensor([position])
        sequence = SequenceRows(start=0, stop=1, run=run, addresses=at, last=position)
        attend = PagedAttend(pool, at, run.slots[at], (sequence,))
        rows.append(target.logits(target(tokens[position : position + 1], attend).final_TD))
    return torch.cat(rows)


def test_captured_features_are_transformers_hidden_states(tmp_path: Path) -> None:
    theirs = tiny_model("llama")
    theirs.save_pretrained(tmp_path)
    tokens = torch.arange(5, 25)
    target = load(tmp_path, pack=False)
    target.capture((0, 2, 4, 7))
    with torch.no_grad():
        hidden = theirs(tokens[None], output_hidden_states=True).hidden_states
        features = target(tokens, DenseAttend(1, 20, device=CPU)).features_TF
    assert features is not None
    for index, layers in enumerate((0, 2, 4, 7)):
        ours = features[:, 32 * index : 32 * (index + 1)]
        assert torch.allclose(ours, hidden[layers][0], atol=TOLERANCE, rtol=0)
