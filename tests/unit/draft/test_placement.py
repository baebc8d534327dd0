"""A tree reaches every rank, and ranks that grew their own notice any difference before anything is kept."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from slipstream.attention.tree import TokenTree, chain
from slipstream.config.speculation import speculation
from slipstream.draft.placement import HASH_BYTES, Seat, all_agree, blank_tree, hand_round, hash_row
from slipstream.parallel.group import Group, SoloGroup
from slipstream.parallel.loopback import loopback
from tests.tiny_engine import CPU
from tests.together import together

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
WIDTH = 64


def some_chain(*, requests: int = 3, steps: int = 4) -> TokenTree:
    generator = torch.Generator().manual_seed(1)
    return chain(torch.randint(0, 150_000, (requests, steps + 1), generator=generator))


def some_tree(*, requests: int = 2) -> TokenTree:
    """Two levels: children 1 to 3 of the root, 4 and 5 below the first, 6 below the second."""
    generator = torch.Generator().manual_seed(2)
    parents = torch.tensor([-1, 0, 0, 0, 1, 1, 2]).repeat(requests, 1)
    depths = torch.tensor([0, 1, 1, 1, 2, 2, 2]).repeat(requests, 1)
    tokens = torch.randint(0, 150_000, parents.shape, generator=generator)
    return TokenTree(tokens_SN=tokens, parents_SN=parents, depths_SN=depths, max_depth=2, is_chain=False)


TREES = {"chain": some_chain(), "tree": some_tree(), "one row": some_chain(requests=1, steps=1)}


def verdicts(trees: list[TokenTree], dtype: torch.dtype) -> list[bool]:
    """What each rank finds when all sum their rows."""

    def vote(group: Group) -> bool:
        row_1D = hash_row(trees[group.rank], group, width=WIDTH, dtype=dtype)
        return bool(all_agree(group.all_reduce(row_1D, "tag"), group))

    return together(len(trees), vote)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_with_one_tree_agree(tree: TokenTree, size: int, dtype: torch.dtype) -> None:
    assert verdicts([tree] * size, dtype) == [True] * size


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_any_other_token_on_any_rank_is_noticed_by_all(tree: TokenTree, rank: int, dtype: torch.dtype) -> None:
    for place in range(tree.tokens_SN.numel()):
        for step in (1, -1, 2**16):
            tokens = tree.tokens_SN.clone()
            tokens.view(-1)[place] += step
            trees = [tree] * 3
            trees[rank] = replace(tree, tokens_SN=tokens)
            assert verdicts(trees, dtype) == [False] * 3


def test_any_other_parent_is_noticed_by_all() -> None:
    tree = some_tree()
    for place in range(tree.parents_SN.numel()):
        parents = tree.parents_SN.clone()
        parents.view(-1)[place] += 1
        assert verdicts([tree, replace(tree, parents_SN=parents)], torch.bfloat16) == [False, False]


def test_the_same_tokens_in_other_places_are_another_tree() -> None:
    tree = some_chain()
    for other in (tree.tokens_SN.flip(0), tree.tokens_SN.flip(1), tree.tokens_SN.roll(1, 1)):
        assert verdicts([tree, chain(other)], torch.float32) == [False, False]


def test_many_random_trees_have_hashes_of_their_own() -> None:
    """Four bytes tell 3,000 trees apart, but for one pair in a thousand such runs."""
    generator = torch.Generator().manual_seed(4)
    group = loopback(2)[0]
    rows = [
        hash_row(chain(torch.randint(0, 50, (1, 5), generator=generator)), group, width=8, dtype=torch.bfloat16)
        for _ in range(3000)
    ]
    assert len({tuple(row[0].tolist()) for row in rows}) > 2990


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hashes_are_bytes_in_a_ranks_own_columns(dtype: torch.dtype) -> None:
    for group in loopback(4):
        row_1D = hash_row(some_tree(), group, width=WIDTH, dtype=dtype)
        own = slice(group.rank * HASH_BYTES, (group.rank + 1) * HASH_BYTES)
        assert row_1D.shape == (1, WIDTH)
        assert row_1D.dtype == dtype
        assert all(0 <= each <= 255 and each == int(each) for each in row_1D[0, own].tolist())
        assert row_1D.count_nonzero() == row_1D[0, own].count_nonzero() > 0


def test_every_byte_survives_a_sum_in_every_dtype() -> None:
    for dtype in DTYPES:
        every = torch.arange(256).to(dtype)
        assert torch.equal((every + torch.zeros(256, dtype=dtype)).long(), torch.arange(256))


def test_a_row_too_narrow_for_the_hashes_is_refused() -> None:
    with pytest.raises(ValueError, match="15 columns has no room for the hashes of 4 ranks"):
        hash_row(some_chain(), loopback(4)[0], width=15, dtype=torch.float32)


@pytest.mark.parametrize("shape", [speculation(4), speculation(3, 3, 8), speculation(1, 4, 4)], ids=str)
def test_a_blank_tree_takes_the_shape_of_the_one_it_receives(shape: object) -> None:
    assert blank_tree(3, shape, CPU).tokens_SN.shape == (3, shape.num_rows)  # type: ignore[attr-defined, arg-type]


@pytest.mark.parametrize("tree", [some_chain(), some_tree()], ids=["chain", "tree"])
@pytest.mark.parametrize("size", [2, 4])
def test_rank_zeros_tree_reaches_every_rank(tree: TokenTree, size: int) -> None:
    shape = speculation(4) if tree.is_chain else speculation(2, 3, 6)
    blank = blank_tree(tree.tokens_SN.shape[0], shape, CPU)
    found = together(size, lambda group: hand_round(tree if group.rank == 0 else blank, group))
    for each in found:
        assert fields(each) == fields(tree)
        assert (each.max_depth, each.is_chain) == (tree.max_depth, tree.is_chain)


def test_a_tree_that_is_handed_round_replaces_whatever_a_rank_grew() -> None:
    mine, others = some_tree(), replace(some_tree(), tokens_SN=some_tree().tokens_SN + 1)
    found = together(3, lambda group: hand_round(mine if group.rank == 0 else others, group))
    assert all(fields(each) == fields(mine) for each in found)


def test_a_tree_travels_only_where_not_every_rank_grows_it() -> None:
    solo, pair = SoloGroup(), loopback(2)[0]
    assert Seat(group=solo, target=pair, grown_by_all=False).travels
    assert not Seat(group=pair, target=pair, grown_by_all=True).travels
    assert not Seat(group=solo, target=solo, grown_by_all=False).travels


def test_ranks_compare_what_they_grew_unless_it_is_made_of_exchanged_ids_alone() -> None:
    solo, pair = SoloGroup(), loopback(2)[0]
    whole = Seat(group=solo, target=pair, grown_by_all=True)
    cut = Seat(group=pair, target=pair, grown_by_all=True, whole=False)
    travels = Seat(group=solo, target=pair, grown_by_all=False)
    assert [seat.compares(is_chain=True) for seat in (whole, cut, travels)] == [True, False, False]
    assert [seat.compares(is_chain=False) for seat in (whole, cut, travels)] == [True, True, False]


def fields(tree: TokenTree) -> list[list[list[int]]]:
    tensors: tuple[Tensor, ...] = (tree.tokens_SN, tree.parents_SN, tree.depths_SN)
    return [each.tolist() for each in tensors]
