"""Skinny products against their twin: on a CUDA device, elsewhere under Triton's interpreter.

In fp32: the interpreter multiplies the raw bits of a bf16 product.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from slipstream.kernels import skinny
from slipstream.kernels.launch import HOPPER_SHARED_BYTES
from slipstream.kernels.norms import add_norm, add_squares, pair_norms
from slipstream.kernels.plans import Plan, Workspace, asked_ahead, default_plan, kept_inputs, tile_for, workspace
from slipstream.kernels.skinny import Ready, Rms, skinny_linear
from slipstream.kernels.twins import linear_twin, squares_twin

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = 1e-5
PLANS = [
    Plan(block_out=32, block_in=64),
    Plan(block_out=32, block_in=64, split=3),
    Plan(block_out=64, block_in=32, split=4),  # parts of two steps, the inputs end within one
    Plan(block_out=32, block_in=64, split=3, tma=True),
    Plan(block_out=16, block_in=128),  # a step beyond the inputs
]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


@pytest.fixture
def space() -> Workspace:
    space = workspace(DEVICE, num_floats=1 << 17)
    space.partials.fill_(float("nan"))
    return space


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("num_rows", [1, 17])
def test_a_product_equals_its_twin_and_writes_every_output(plan: Plan, num_rows: int, space: Workspace) -> None:
    x, w, bias = random(num_rows, 192), random(100, 192), random(100)
    out = torch.full((num_rows, 100), float("nan"), device=DEVICE)
    found = skinny_linear(x, w, space=space, plan=plan, bias=bias, out=out)
    torch.testing.assert_close(found, linear_twin(x, w, bias=bias), rtol=1e-4, atol=1e-3)
    assert not space.counts.any(), "the counts are ready for the next kernel"


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("early", [True, False], ids=["residual early", "residual late"])
def test_norm_residual_and_sums_of_squares_are_fused(
    early: bool, plan: Plan, space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skinny, "has_warpgroups", lambda device: early)
    x, w, weight, residual = random(5, 192), random(100, 192), random(192), random(5, 100)
    _, sums, scaled = add_squares(x, weight)
    after, poison = random(100), float("nan")
    squares = torch.full((5, -(-100 // plan.block_out)), poison, device=DEVICE)
    ready = Ready(weight=after, squares=squares, scaled=torch.full_like(residual, poison))
    rms = Rms(squares=sums, eps=EPS)
    found = skinny_linear(scaled, w, space=space, plan=plan, rms=rms, residual=residual, ready=ready)
    wanted = linear_twin(x, w, norm=(weight, EPS), residual=residual)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(squares, squares_twin(wanted, plan.block_out), rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(ready.scaled, wanted * after, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_gate_and_up_meet_in_one_kernel(plan: Plan, space: Workspace) -> None:
    x, w = random(3, 192), random(2 * 50, 192) / 14
    found = skinny_linear(x, w, space=space, plan=plan, gated=True)
    torch.testing.assert_close(found, linear_twin(x, w, gated=True), rtol=1e-4, atol=1e-4)


def test_a_product_takes_the_sums_of_squares_that_the_last_one_left(space: Workspace) -> None:
    x, first, second, weight = random(3, 64), random(96, 64) / 8, random(40, 96), random(96)
    residual = random(3, 96)
    ready = Ready(weight=weight, squares=torch.empty(3, 3, device=DEVICE), scaled=torch.empty_like(residual))
    plan = Plan(block_out=32, block_in=32)
    total = skinny_linear(x, first, space=space, plan=plan, residual=residual, ready=ready)
    rms = Rms(squares=ready.squares, eps=EPS)
    found = skinny_linear(ready.scaled, second, space=space, plan=plan, rms=rms)
    torch.testing.assert_close(found, linear_twin(total, second, norm=(weight, EPS)), rtol=1e-4, atol=1e-3)


def test_more_rows_than_a_tile_take_several(space: Workspace) -> None:
    x, w = random(70, 64), random(40, 64)
    found = skinny_linear(x, w, space=space, plan=Plan(block_out=32, block_in=32, split=2))
    torch.testing.assert_close(found, linear_twin(x, w), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("num_out", "num_in"), [(6144, 4096), (4096, 14_336), (960, 576), (576, 1536), (128_256, 4096)]
)
def test_the_default_plan_covers_the_inputs_in_whole_parts(num_out: int, num_in: int) -> None:
    plan = default_plan(num_out, num_in)
    assert num_in % (plan.block_in * plan.split) == 0


@pytest.mark.parametrize("shared", [HOPPER_SHARED_BYTES, 163 << 10, 99 << 10], ids=["H200", "A100", "L40S"])
@pytest.mark.parametrize("gated", [False, True])
def test_every_tile_fits_the_devices_shared_memory_and_keeps_what_decides_bits(shared: int, gated: bool) -> None:
    plan = default_plan(14_336, 4096)
    for num_rows in (1, 16, 64, 65, 1024):
        tile = tile_for(plan, num_rows, 4096, shared=shared, gated=gated)
        block = (tile.plan.block_out * (2 if gated else 1) + tile.rows) * tile.plan.block_in * 2
        assert block * tile.plan.stages <= shared
        assert tile.plan.split == plan.split
        assert 2 <= tile.plan.stages <= 4


def test_small_weights_are_asked_for_as_a_whole_and_large_ones_in_part() -> None:
    def asked(num_rows: int, num_in: int, num_bytes: int, split: int = 1) -> int:
        plan = Plan(block_out=64, block_in=64, split=split)
        return asked_ahead(tile_for(plan, num_rows, num_in, shared=HOPPER_SHARED_BYTES), num_in, num_bytes=num_bytes)

    assert asked(1, 576, 1 << 20) == 576
    assert asked(64, 1536, 1 << 20, split=6) == 256, "a program's own part"
    assert asked(1, 4096, 1 << 25) == 128
    assert asked(1, 600, 1 << 20) == 0, "the last rows have no whole blocks to ask for"
    assert asked(65, 576, 1 << 20) == 0, "many rows wait for arithmetic"


@pytest.mark.parametrize(("num_in", "split", "count"), [(576, 1, 512), (576, 3, 128), (384, 3, 128)])  # the last: all
@pytest.mark.parametrize("tma", [False, True])
def test_weights_that_are_kept_in_registers_are_added_behind_the_others(
    num_in: int, split: int, count: int, tma: bool, space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, kept = Plan(block_out=32, block_in=64, split=split, tma=tma), []

    def counted(*args: Any, **settings: Any) -> int:
        kept.append(kept_inputs(*args, **settings))
        return kept[-1]

    monkeypatch.setattr(skinny, "kept_inputs", counted)
    x, w, bias = (each.half() for each in (random(5, num_in), random(100, num_in), random(100)))
    out = torch.full((5, 100), float("nan"), device=DEVICE, dtype=torch.float16)
    found = skinny_linear(x, w, space=space, plan=plan, bias=bias, out=out, pdl=True)
    assert kept == [count]
    unkept = skinny_linear(x, w, space=space, plan=plan, bias=bias, keep=False, pdl=True)
    assert len(kept) == 1, "nobody asked how many"
    torch.testing.assert_close(found, unkept, rtol=2e-3, atol=2e-2)
    torch.testing.assert_close(found, linear_twin(x, w, bias=bias), rtol=2e-3, atol=2e-2)


def test_few_rows_keep_as_many_weights_as_registers_hold() -> None:
    def kept(num_rows: int, num_in: int, *, gated: bool = False, item_bytes: int = 2, **plan: int) -> int:
        tile = tile_for(Plan(**{"block_out": 64, "block_in": 64, **plan}), num_rows, num_in, shared=HOPPER_SHARED_BYTES)
        return kept_inputs(tile, num_in, item_bytes=item_bytes, gated=gated)

    assert kept(1, 4096) == kept(16, 4096) == 512
    assert kept(17, 4096) == 0, "their sums take the registers"
    assert kept(1, 4096, block_out=128) == 256
    assert kept(1, 4096, block_out=128, warps=8) == 256, "two such programs share a multiprocessor's memory"
    assert kept(1, 4096, warps=8) == 512, "the other warps keep the same"
    assert kept(1, 4096, block_out=32) == 512
    assert kept(1, 1536, split=6, block_in=128) == 256, "a program's own part, whole"
    assert kept(1, 640, split=5, block_in=128) == 128
    assert kept(1, 600) == 0, "the last rows have no whole blocks"
    assert kept(1, 4096, gated=True) == kept(1, 4096, item_bytes=4) == 0


def test_rows_that_do_not_lie_row_by_row_are_refused(space: Workspace) -> None:
    with pytest.raises(AssertionError, match="row by row"):
        skinny_linear(random(64, 4).T, random(32, 64), space=space)


def test_the_norm_adds_the_residual_first() -> None:
    x, delta, weight = random(3, 96), random(3, 96) + 1, random(96)
    total, normed = add_norm(x, delta, weight, eps=EPS)
    torch.testing.assert_close(total, x + delta)
    torch.testing.assert_close(normed, torch.nn.functional.rms_norm(x + delta, (96,), weight, EPS))
    same, normed = add_norm(x, None, weight, eps=EPS)
    assert same is x
    torch.testing.assert_close(normed, torch.nn.functional.rms_norm(x, (96,), weight, EPS))


def test_rows_of_a_table_are_read_where_a_forward_begins() -> None:
    table, ids, weights = random(9, 96), torch.tensor([7, 0, 7], device=DEVICE), (random(96), random(96))
    rows = table[ids]
    found = add_squares(table, weights[0], ids_T=ids)
    assert all(torch.equal(one, other) for one, other in zip(found, add_squares(rows, weights[0]), strict=True))
    assert torch.equal(found[0], rows)
    second = random(3, 96)
    looked_up = pair_norms(table, second, weights, eps=(EPS, EPS), ids_T=ids)
    given = pair_norms(rows, second, weights, eps=(EPS, EPS))
    assert all(torch.equal(one, other) for one, other in zip(looked_up, given, strict=True))
