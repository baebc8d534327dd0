"""A product behind attention that reads many keys does not load its weights meanwhile; all others may."""

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from slipstream.attention.dense import DenseAttend
from slipstream.attention.kernel import KernelAttend
from slipstream.attention.pool import KVPool
from slipstream.bench.watched import WatchedProducts
from slipstream.kernels.keys import Keys
from slipstream.kernels.paged import FEW_PARTS, PART
from slipstream.kernels.plans import workspace
from slipstream.kernels.skinny import skinny_linear
from slipstream.layers import kernel_products
from slipstream.layers.linear import RowLinear
from slipstream.layers.norm import RMSNorm
from slipstream.layers.products import Stream, TorchProducts
from slipstream.parallel.group import SoloGroup
from tests.tiny_engine import CPU, TINY, tiny_draft, tiny_target


class Long(DenseAttend):
    @property
    def is_long(self) -> bool:
        return True


class Telling(TorchProducts):
    def __init__(self) -> None:
        self.kept: list[tuple[str, bool]] = []

    def added(self, stream: Stream, linear: RowLinear, x_TI: Tensor, follows: RMSNorm, *, keep: bool = True) -> Stream:
        self.kept.append((linear.name, keep))
        return super().added(stream, linear, x_TI, follows)


@pytest.mark.parametrize(("attend", "keep"), [(DenseAttend, True), (Long, False)])
def test_a_layer_says_what_its_output_projection_stands_behind(attend: type[DenseAttend], keep: bool) -> None:
    target, tokens, told = tiny_target(TINY), torch.tensor([1, 2, 3]), Telling()
    draft = tiny_draft(target).model
    draft.products = target.products = WatchedProducts(inner=told)
    target(tokens, attend(1, 3, device=CPU))
    draft(tokens, torch.zeros(3, TINY.hidden_size), attend(1, 3, device=CPU))
    assert told.kept == [("attention", keep), ("mlp", True)] * (TINY.num_layers + 1)


class TwoRanks(SoloGroup):
    size = 2


@pytest.mark.parametrize("group", [SoloGroup(), TwoRanks()], ids=["alone", "cut"])
@pytest.mark.parametrize("keep", [True, False])
def test_kernels_are_told_whether_to_keep_weights(
    keep: bool, group: SoloGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def product(x_TD: Tensor, w_OD: Tensor, **settings: Any) -> Tensor:
        told.append(settings["keep"])
        return skinny_linear(x_TD, w_OD, **settings)

    monkeypatch.setattr(kernel_products, "skinny_linear", product)
    by = kernel_products.KernelProducts(space=workspace(CPU, num_floats=1 << 16), plans={}, pdl=False)
    linear, norm = RowLinear(64, 64, group=group, name="attention"), RMSNorm(64, eps=1e-5)
    linear.weight.data.zero_()
    by.added(Stream(torch.zeros(1, 64)), linear, torch.ones(1, 64), norm, keep=keep)
    assert told == [keep]


def test_attention_is_long_when_its_parts_are_added_by_another_kernel() -> None:
    pool = KVPool(
        num_layers=1, num_pages=2, page_size=4, num_kv_heads=1, head_dim=16, dtype=torch.float32,
        device=CPU, pdl=False,
    )  # fmt: skip

    def is_long(most: int) -> bool:
        keys = Keys(pages=torch.zeros(1, 1, dtype=torch.int32), page=4, newest=torch.tensor([[0]]), most=most)
        return KernelAttend(pool, keys, pdl=False).is_long

    assert not is_long(1)
    assert not is_long(FEW_PARTS * PART)
    assert is_long(FEW_PARTS * PART + 1)
