"""Paged attention against its twin: on a CUDA device, elsewhere under Triton's interpreter.

What no row may read is NaN, so that a read beyond a length shows.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from slipstream.kernels import paged
from slipstream.kernels.keys import Keys
from slipstream.kernels.paged import FEW_PARTS, PART, paged_attention
from slipstream.kernels.paged_parts import MANY
from slipstream.kernels.qkv import rotate_and_store
from slipstream.kernels.twins import NO_KEY, attention_twin, keys_of_row

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAGE = 16
MANY_PARTS = MANY.value


def seen_slots(keys: Keys) -> Tensor:
    """The slots of each row [T, N], in position order."""
    rows = []
    for sequence, newest in enumerate(keys.newest.tolist()):
        for row, last in enumerate(newest):
            path = None if keys.paths is None else keys.paths[sequence, row].tolist()
            committed = None if keys.committed is None else int(keys.committed[sequence])
            seen = keys_of_row(last, first=keys.first, window=keys.window, committed=committed, path=path)
            at = torch.tensor(seen, dtype=torch.long)
            rows.append(keys.pages[sequence].cpu()[at // keys.page] * keys.page + at % keys.page)
    table = torch.full((len(rows), max(map(len, rows)) or 1), NO_KEY)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table


def poisoned_pool(slots_TN: Tensor, num_slots: int, num_kv_heads: int, width: int) -> tuple[Tensor, Tensor]:
    used = slots_TN[slots_TN != NO_KEY].unique()
    pool = torch.full((2, num_slots, num_kv_heads, width), float("nan"))
    pool[:, used] = torch.randn(2, len(used), num_kv_heads, width)
    return pool[0].contiguous().to(DEVICE), pool[1].contiguous().to(DEVICE)


def compare(keys: Keys, *, num_heads: int = 4, num_kv_heads: int = 2, width: int = 24) -> None:
    slots = seen_slots(keys)
    pool = poisoned_pool(slots, (int(keys.pages.max()) + 1) * keys.page, num_kv_heads, width)
    queries = torch.randn(keys.newest.numel(), num_heads, width).to(DEVICE)
    wanted = attention_twin(queries, *pool, slots.to(DEVICE))
    for arrivals in (None, torch.zeros(64, dtype=torch.int32, device=DEVICE)):
        found = paged_attention(queries, *pool, keys, arrivals=arrivals)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        assert arrivals is None or not arrivals.any(), "the counts are ready for the next kernel"
    compare_turning(keys, pool, num_heads=num_heads, width=width)


def compare_turning(keys: Keys, pool: tuple[Tensor, Tensor], *, num_heads: int, width: int) -> None:
    """The same with RoPE and the store inside, beside the two kernels."""
    num_kv_heads, num_rows = pool[0].shape[1], keys.newest.numel()
    qkv = torch.randn(num_rows, (num_heads + 2 * num_kv_heads) * width).to(DEVICE)
    tables = tuple(torch.randn(64, width // 2).to(DEVICE) for _ in "cs")
    apart, inside = ((pool[0].clone(), pool[1].clone()) for _ in "ab")
    queries = rotate_and_store(qkv, keys, tables, apart, num_heads=num_heads)
    wanted = paged_attention(queries, *apart, keys)
    arrivals = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    found = paged_attention(qkv, *inside, keys, tables_PF=tables, arrivals=arrivals)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(inside, apart, strict=True):
        torch.testing.assert_close(ours[1:], theirs[1:], rtol=1e-5, atol=1e-5, equal_nan=True)


def table(num_sequences: int, num_pages: int) -> Tensor:
    return 1 + torch.randperm(num_sequences * num_pages).view(num_sequences, num_pages).to(DEVICE)  # 0 is scratch


@pytest.mark.parametrize(("first", "window"), [(0, None), (1, 30)])
def test_rows_of_several_sequences_see_their_own_lengths(first: int, window: int | None) -> None:
    newest = torch.tensor([[-1, -1, 0], [4, 5, 6], [PART - 2, PART - 1, PART], [PART + 40, PART + 41, PART + 42]])
    keys = Keys(
        pages=table(4, 20), page=PAGE, newest=newest.to(DEVICE), most=PART + 50, first=first, window=window
    )  # fmt: skip
    compare(keys)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "width"), [(9, 3, 64), (8, 1, 96), (4, 4, 128), (2, 1, 256)])
def test_head_sizes_and_groups(num_heads: int, num_kv_heads: int, width: int) -> None:
    keys = Keys(pages=table(1, 8), page=PAGE, newest=torch.tensor([[70, 71]]).to(DEVICE), most=90)
    compare(keys, num_heads=num_heads, num_kv_heads=num_kv_heads, width=width)


def test_blocks_are_loaded_ahead_where_shared_memory_has_room_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    half, single = torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1)
    assert [paged.stages(4, width, half) for width in (64, 128, 256)] == [1, 2, 2]  # the first is a part in one block
    assert [paged.stages(4, width, single) for width in (64, 128, 256)] == [2, 2, 2]
    assert paged.stages(FEW_PARTS + 1, 128, half) == 1
    monkeypatch.setattr(paged, "shared_bytes", lambda device: 99 << 10)  # of an L40S
    assert paged.stages(4, 128, half) == 1


def test_a_block_holds_32_kb_of_keys_but_no_more_than_a_part() -> None:
    assert [paged.block_of(width, 2) for width in (16, 64, 128, 256)] == [PART, 256, 128, 64]
    assert [paged.block_of(width, 4) for width in (64, 128, 256)] == [128, 64, 32]


def test_trees_take_narrow_tiles_as_long_as_keys_are_few() -> None:
    assert paged.most_columns(FEW_PARTS, tree=True) < paged.most_columns(FEW_PARTS + 1, tree=True)
    assert paged.most_columns(FEW_PARTS, tree=False) == paged.most_columns(FEW_PARTS + 1, tree=False)


def test_no_keys_give_zeros_in_one_part_and_in_many() -> None:
    for most in (1, 3 * PART):
        compare(Keys(pages=table(1, 4), page=PAGE, newest=torch.tensor([[-1, -1]]).to(DEVICE), most=most))


def test_more_columns_than_a_tile_take_several() -> None:
    newest = 30 + torch.arange(20)[None].to(DEVICE)
    compare(Keys(pages=table(1, 8), page=PAGE, newest=newest, most=90), num_heads=8)


def test_a_trees_tiles_add_their_parts_each_by_itself() -> None:
    committed, depths = PART + 20, torch.arange(8)
    paths = torch.where(depths[None] <= depths[:, None], depths[None], -1)[None]
    keys = Keys(
        pages=table(1, 20),
        page=PAGE,
        newest=(committed + depths[None]).to(DEVICE),
        most=committed + 8,
        committed=torch.tensor([committed]).to(DEVICE),
        paths=torch.where(paths >= 0, paths + committed, -1).to(DEVICE),
    )
    compare(keys, num_heads=8)


@pytest.mark.parametrize("committed", [3, PART // 2, PART - 2])
def test_tree_rows_see_the_prefix_and_their_own_path(committed: int) -> None:
    paths = torch.tensor([[[0, -1, -1], [0, 1, -1], [0, 2, -1], [0, 2, 3], [0, 1, 4]]])
    keys = Keys(
        pages=table(1, 20),
        page=PAGE,
        newest=(committed + (paths >= 0).sum(2) - 1).to(DEVICE),
        most=committed + 8,
        committed=torch.tensor([committed]).to(DEVICE),
        paths=torch.where(paths >= 0, paths + committed, -1).to(DEVICE),
        writes=(committed + torch.arange(5)[None]).to(DEVICE),
    )
    compare(keys)


def test_a_list_of_slots_is_a_page_table_with_pages_of_one() -> None:
    slots = 1 + torch.randperm(64)[None].to(DEVICE)
    compare(Keys(pages=slots, page=1, newest=torch.tensor([[40, 41]]).to(DEVICE), most=64))


def test_a_rows_bits_do_not_depend_on_a_longer_limit_or_on_other_rows() -> None:
    newest = torch.tensor([[PART + 5, PART + 6, PART + 7]]).to(DEVICE)
    pages, queries = table(1, 20), torch.randn(3, 4, 24).to(DEVICE)
    pool = (torch.randn(336, 2, 24).to(DEVICE), torch.randn(336, 2, 24).to(DEVICE))
    three = paged_attention(queries, *pool, Keys(pages=pages, page=PAGE, newest=newest, most=PART + 8))
    alone = Keys(pages=pages, page=PAGE, newest=newest[:, 1:2].contiguous(), most=4 * PART)
    assert torch.equal(paged_attention(queries[1:2].contiguous(), *pool, alone)[0], three[1])


@pytest.mark.parametrize("longest", [FEW_PARTS * PART + 9, MANY_PARTS * PART + 70])
def test_more_parts_than_a_program_adds_are_added_by_another_kernel(longest: int) -> None:
    newest = torch.tensor([[longest - 1]]).to(DEVICE)
    keys = Keys(pages=table(1, -(-longest // PAGE)), page=PAGE, newest=newest, most=longest)
    slots = seen_slots(keys)
    pool = poisoned_pool(slots, (int(keys.pages.max()) + 1) * PAGE, 1, 16)
    queries = torch.randn(1, 1, 16).to(DEVICE)
    arrivals = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    wanted = attention_twin(queries, *pool, slots.to(DEVICE))
    torch.testing.assert_close(paged_attention(queries, *pool, keys, arrivals=arrivals), wanted, rtol=1e-4, atol=1e-5)


def test_a_short_rows_bits_do_not_depend_on_who_adds_its_parts() -> None:
    pages, queries = table(1, -(-3 * PART // PAGE)), torch.randn(1, 1, 16).to(DEVICE)
    pool = (torch.randn(3 * PART + PAGE, 1, 16).to(DEVICE), torch.randn(3 * PART + PAGE, 1, 16).to(DEVICE))
    keys = Keys(pages=pages, page=PAGE, newest=torch.tensor([[2 * PART + 9]]).to(DEVICE), most=3 * PART)
    arrivals = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    in_company = replace(keys, most=(FEW_PARTS + 3) * PART)  # of a request with a longer context
    found = [paged_attention(queries, *pool, each, arrivals=arrivals) for each in (keys, in_company)]
    assert torch.equal(*found)
