"""The Triton kernels on one CUDA device: twins, bits, poisoned memory; the parts of `slipstream.bench.kernels`."""

import time

import pytest
import torch

pytest.importorskip("triton")

from slipstream.bench.kernel_attention import HEADS, check_alike, check_random, check_turning
from slipstream.bench.kernel_checks import check_head, check_linears, check_norms, check_qkv, check_repeats
from slipstream.bench.kernel_timing import Record
from slipstream.kernels.plans import Workspace, workspace

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture
def record() -> Record:
    torch.manual_seed(0)
    return Record(path=None, stop_at=time.monotonic() + 600)


@pytest.fixture
def space() -> Workspace:
    return workspace(torch.device("cuda"))


@pytest.mark.parametrize("shape", [(960, 576), (4096, 4096)], ids=str)
def test_a_products_rows_equal_their_twin_and_do_not_depend_on_their_number(
    shape: tuple[int, int], record: Record, space: Workspace
) -> None:
    check_linears(record, space, shape)
    assert not record.failed


def test_split_products_in_turn_do_not_race(record: Record, space: Workspace) -> None:
    check_repeats(record, space)
    assert not record.failed


def test_the_head_chooses_the_tokens_of_its_logits_with_the_noise_of_torch(record: Record) -> None:
    check_head(record, vocab=49_152, num_in=576)
    assert not record.failed


def test_norms_equal_their_twin(record: Record) -> None:
    check_norms(record, 4096)
    assert not record.failed


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_attention_equals_its_twin_and_a_rows_bits_do_not_depend_on_its_company(
    heads: tuple[int, int, int], record: Record
) -> None:
    check_qkv(record, num_heads=heads[0], num_kv_heads=heads[1], width=heads[2])
    check_random(record, heads, longest=4000)
    for root in (7, 250):
        check_alike(record, heads, root=root)
        check_turning(record, heads, root=root)
    assert not record.failed
