"""Causal rows by kernels, and by torch beyond a position, against torch alone; under Triton's interpreter."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from slipstream.attention import spans
from slipstream.attention.pool import KVPool, SlotRun
from slipstream.attention.rows import attend_spans
from slipstream.config.model import RopeConfig
from slipstream.layers.norm import RMSNorm
from slipstream.layers.rope import Rope

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WIDTH, NUM_HEADS, NUM_KV_HEADS, PAGE = 16, 4, 2, 4
SPANS = [(0, 13), (5, 9), (3, 11), (9, 10)]  # whole, below, across and beyond SHORT
SHORT = 8


@dataclass
class Layer:
    index: int = 0
    num_heads: int = NUM_HEADS
    num_kv_heads: int = NUM_KV_HEADS
    head_dim: int = WIDTH
    window: int | None = None
    query_norm: RMSNorm | None = None
    key_norm: RMSNorm | None = None


def pool(*, pdl: bool | None) -> KVPool:
    generator = torch.Generator().manual_seed(1)
    made = KVPool(
        num_layers=1, num_pages=40, page_size=PAGE, num_kv_heads=NUM_KV_HEADS, head_dim=WIDTH, dtype=torch.float32,
        device=DEVICE, pdl=pdl,
    )  # fmt: skip
    for each in (made.keys, made.values):
        each.copy_(torch.randn(each.shape, generator=generator))
    return made


def scattered(count: int) -> list[SlotRun]:
    pages = 1 + torch.randperm(39, generator=torch.Generator().manual_seed(2))
    slots = [(pages[5 * index : 5 * index + 5, None] * PAGE + torch.arange(PAGE)).flatten() for index in range(count)]
    return [SlotRun(slots=each.to(DEVICE), base=None) for each in slots]


def both(layer: Layer, shift: int) -> tuple[list[Tensor], list[KVPool]]:
    num_rows, pools = sum(stop - start for start, stop in SPANS), [pool(pdl=None), pool(pdl=False)]
    generator = torch.Generator().manual_seed(3)
    qkv = torch.randn(num_rows, (NUM_HEADS + 2 * NUM_KV_HEADS) * WIDTH, generator=generator).to(DEVICE)
    rope = Rope(RopeConfig(), head_dim=WIDTH, max_position=64, trained_position=64).to(DEVICE)
    runs = scattered(len(SPANS))
    return [attend_spans(each, runs, SPANS, shift=shift)(layer, qkv, rope) for each in pools], pools


@pytest.mark.parametrize("shift", [0, 1], ids=["target", "draft"])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("normed", [False, True])
def test_rows_and_entries_are_those_of_torch(
    normed: bool, window: int | None, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "SHORT", SHORT)
    norms = [RMSNorm(WIDTH, eps=1e-5).to(DEVICE).requires_grad_(False) for _ in "qk"] if normed else [None, None]
    (wanted, found), (theirs, ours) = both(Layer(window=window, query_norm=norms[0], key_norm=norms[1]), shift)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.keys[:, PAGE:], theirs.keys[:, PAGE:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.values[:, PAGE:], theirs.values[:, PAGE:])
    assert not ours.arrivals.any(), "the counts are ready for the next kernel"


def test_a_rows_bits_do_not_depend_on_how_its_context_is_cut_or_on_its_company() -> None:
    rope = Rope(RopeConfig(), head_dim=WIDTH, max_position=64, trained_position=64).to(DEVICE)
    qkv = torch.randn(16, (NUM_HEADS + 2 * NUM_KV_HEADS) * WIDTH, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    first, second = scattered(2)
    whole, cut = pool(pdl=False), pool(pdl=False)
    wanted = attend_spans(whole, [first], [(0, 12)])(Layer(), qkv[:12], rope)
    found = [attend_spans(cut, [first], [(0, 7)])(Layer(), qkv[:7], rope)]
    beside = torch.cat((qkv[12:], qkv[7:12]))
    found.append(attend_spans(cut, [second, first], [(0, 4), (7, 12)])(Layer(), beside, rope)[4:])
    assert torch.equal(torch.cat(found), wanted)
    assert torch.equal(cut.keys[0, first.slots[:12]], whole.keys[0, first.slots[:12]])
