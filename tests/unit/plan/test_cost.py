"""The cost model beside counts done by hand, and the directions in which it must move."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.plan.cost import (
    Free,
    Load,
    Own,
    Placed,
    bare_forward,
    cycle,
    distinct_experts,
    draft_forward_ms,
    forward,
    forward_bytes,
    plain_step,
)  # fmt: skip
from slipstream.plan.drafts import DraftKind, draft_for, draft_kind, make_draft
from slipstream.plan.hardware import machine
from slipstream.plan.models import named_model

KIMI, PCIE = named_model("kimi-k2.5"), machine("8x-rtx-pro-6000-pcie")
APART = replace(Free(), rho=0.0, rho_batch=0.0)
NOTHING = Free(
    eta_d=1, eta_e=1, eta_c=1e6, layer_us=0, latent_us=0, moe_us=0, step_us=0, moe_step_us=0, verify_us=0, rho=0,
    rho_batch=0, wire=0, draft_us=0, tree_us=0, host_us=0, cycle_us=0, row_us=0,
)  # fmt: skip


@pytest.mark.parametrize(("rows", "experts"), [(1, 8.0), (3, 23.5), (4, 31.0), (6, 45.6), (11, 79.4)])
def test_distinct_experts_of_rows_that_choose_independently(rows, experts):
    assert distinct_experts(KIMI, Load(requests=1, rows=rows), APART) == pytest.approx(experts, abs=0.05)
    assert distinct_experts(KIMI, Load(requests=rows, rows=1), APART) == pytest.approx(experts, abs=0.05)


def test_rows_of_one_text_share_more_experts_than_requests_do():
    free = Free()
    one = distinct_experts(KIMI, Load(requests=1, rows=8), free)
    assert (
        one
        < distinct_experts(KIMI, Load(requests=8, rows=1), free)
        < distinct_experts(KIMI, Load(requests=8, rows=1), APART)
    )


def test_bytes_of_a_kimi_forward_over_eight_ranks():
    read = forward_bytes(KIMI, PCIE, Load(requests=1, rows=1), APART)
    fixed = sum(value for part, value in read.items() if part not in ("experts", "cache"))
    assert fixed / 1e9 == pytest.approx(4.54, abs=0.02)
    assert read["experts"] / 1e9 == pytest.approx(1.49, abs=0.01)
    assert read["attention"] / 1e9 == pytest.approx(3.158, abs=0.01)
    assert read["router"] / 1e9 == pytest.approx(0.33, abs=0.005)


def test_without_any_overhead_a_forward_lasts_as_long_as_reading():
    shape, card = named_model("llama-3.1-8b"), machine("1x-h200")
    ms = forward(shape, card, Load(requests=1, rows=1), NOTHING).ms
    assert ms == pytest.approx((shape.total - shape.head) * 2 / 4.8e12 * 1e3, rel=1e-6)
    assert plain_step(shape, card, NOTHING, requests=1).ms == pytest.approx(ms)


def test_all_reduces_are_two_a_layer_and_none_on_one_device():
    parts = forward(KIMI, PCIE, Load(requests=1, rows=1), Free())
    assert parts.num_all_reduces == 122
    assert parts.all_reduce_ms == pytest.approx(122 * PCIE.all_reduce_us(14_336, 8) / 1e3)
    alone = forward(named_model("llama-3.1-8b"), machine("1x-h200"), Load(requests=1, rows=1), Free())
    assert (alone.num_all_reduces, alone.all_reduce_ms) == (0, 0.0)


def test_a_second_row_meets_other_kernels():
    shape, card = named_model("llama-3.1-8b"), machine("1x-h100")
    free = replace(NOTHING, step_us=10.0)
    ms = [forward(shape, card, Load(requests=n, rows=1), free).ms for n in (1, 2, 3)]
    assert ms[1] - ms[0] == pytest.approx(0.32, abs=1e-3)
    assert ms[2] - ms[1] == pytest.approx(0, abs=1e-3)


def test_many_rows_are_bound_by_compute():
    shape, card = named_model("llama-3.1-8b"), machine("1x-h100")
    load = Load(requests=4096, rows=1)
    free = replace(NOTHING, eta_c=0.5)
    assert forward(shape, card, load, free).ms == pytest.approx(
        2 * shape.active * 4096 / (0.5 * 989e12) * 1e3, rel=0.01
    )


def test_a_latent_cache_is_read_whole_by_every_rank():
    context = Load(requests=2, rows=1, context=1000)
    assert forward_bytes(KIMI, PCIE, context, Free())["cache"] == 2 * 1000 * 61 * 576 * 2
    llama = named_model("llama-3.1-8b")
    assert forward_bytes(llama, machine("8x-h100"), context, Free())["cache"] == 2 * 1000 * 32 * 2 * 1024 * 2 / 8


@given(rows=st.integers(1, 32), requests=st.integers(1, 64), context=st.integers(0, 100_000))
@settings(max_examples=60)
def test_more_work_never_takes_less_time(rows, requests, context):
    free, load = Free(), Load(requests=requests, rows=rows, context=context)
    ms = bare_forward(KIMI, PCIE, load, free).ms
    for more in (
        replace(load, rows=rows + 1),
        replace(load, requests=requests + 1),
        replace(load, context=context + 99),
    ):
        assert bare_forward(KIMI, PCIE, more, free).ms >= ms - 1e-9


def test_parts_add_up_and_calibration_moves_level_and_slope():
    one, four = (Load(requests=1, rows=n) for n in (1, 4))
    bare = [bare_forward(KIMI, PCIE, load, Free()).ms for load in (one, four)]
    own = Own(offset_ms=1.5, growth=2.0)
    mine = [forward(KIMI, PCIE, load, Free(), own).ms for load in (one, four)]
    assert mine[0] == pytest.approx(bare[0] + 1.5)
    assert mine[1] - mine[0] == pytest.approx(2 * (bare[1] - bare[0]))


@pytest.mark.parametrize(("vocab", "params_b"), [("reduced", 0.81), ("full", 1.75)])
def test_a_kimi_draft_step_reads_what_the_facts_count(vocab, params_b):
    draft = make_draft(KIMI, DraftKind.EAGLE3, bits=16)
    head = draft.head if vocab == "reduced" else KIMI.head
    assert (draft.body + head) / 1e9 == pytest.approx(params_b, rel=0.05)


def test_cutting_the_draft_trades_bytes_for_all_reduces():
    draft, load, free = make_draft(KIMI, DraftKind.EAGLE3, bits=16), Load(requests=1, rows=6), Free(wire=1.0)
    whole, none = draft_forward_ms(draft, PCIE, load, Placed(), free)
    cut, wire = draft_forward_ms(draft, PCIE, load, Placed(ranks=8, replicated=False), free)
    assert none == 0
    assert wire == pytest.approx(2 * PCIE.all_reduce_us(14_336, 8) / 1e3)
    assert whole - cut == pytest.approx(draft.step_bytes * 7 / 8 / (1.792e12 * free.eta_d) * 1e3 - wire, rel=0.01)


def test_a_draft_on_some_ranks_tells_the_others_once_a_cycle():
    draft, load = make_draft(KIMI, DraftKind.EAGLE3, bits=16), Load(requests=1, rows=4)
    part = cycle(KIMI, PCIE, draft, load, Placed(ranks=1, replicated=False), Free(), steps=3)
    whole = cycle(KIMI, PCIE, draft, load, Placed(), Free(), steps=3)
    assert part.ms - whole.ms == pytest.approx(PCIE.all_reduce_us(64, 8) / 1e3)


def test_a_block_drafter_runs_once_and_saved_outputs_never():
    block, free = (make_draft(KIMI, kind, bits=16) for kind in (DraftKind.BLOCK, DraftKind.FREE))
    chain = make_draft(KIMI, DraftKind.EAGLE3, bits=16)
    assert [each.forwards(7) for each in (chain, block, free)] == [7, 1, 0]
    assert chain.forwards(0) == 0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("EAGLE-3.1", DraftKind.EAGLE3), ("lightseekorg/kimi-k2.5-eagle3-mla", DraftKind.EAGLE3),
        ("EAGLE", DraftKind.EAGLE), ("EAGLE-2", DraftKind.EAGLE), ("native MTP", DraftKind.MTP),
        ("DSpark W4", DraftKind.BLOCK), ("DFly block 8", DraftKind.BLOCK), ("draft model", DraftKind.MODEL),
        ("Arctic LSTM speculator + suffix", DraftKind.LIGHT), ("replay oracle (saved target outputs)", DraftKind.FREE),
        ("", DraftKind.EAGLE3),
    ],
)  # fmt: skip
def test_a_draft_s_name_says_its_kind(text, kind):
    assert draft_kind(text) is kind


def test_a_draft_s_name_says_its_bits():
    assert [draft_for(KIMI, text).bits for text in ("EAGLE3 FP8", "DSpark W4", "EAGLE3 BF16")] == [8, 4.5, 16]
