"""Attention over blocks: right against a plain softmax, and the same bits in any company."""

import pytest
import torch
from torch import Tensor

from slipstream.kernels.reference import KEY_BLOCK, attend_paths, attend_sdpa, attend_shared

HEADS = [(9, 3, 64), (8, 8, 32), (4, 2, 16), (16, 2, 128)]


def naive(q_RHK: Tensor, k_LGK: Tensor, v_LGK: Tensor, mask_RL: Tensor) -> Tensor:
    repeat = q_RHK.shape[1] // k_LGK.shape[1]
    k, v = (x.double().repeat_interleave(repeat, dim=1) for x in (k_LGK, v_LGK))
    scores = torch.einsum("rhk,lhk->rhl", q_RHK.double(), k) * q_RHK.shape[2] ** -0.5 + mask_RL[:, None].double()
    return torch.einsum("rhl,lhk->rhk", scores.softmax(-1), v)


def inputs(heads: tuple[int, int, int], rows: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    num_heads, groups, width = heads
    queries = torch.randn(rows, num_heads, width)
    return queries, torch.randn(keys, groups, width), torch.randn(keys, groups, width)


def causal(newest: list[int], keys: int) -> Tensor:
    hidden = torch.arange(keys) > torch.tensor(newest)[:, None]
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("attend", [attend_shared, attend_sdpa])
def test_shared_keys_give_softmax_attention(heads: tuple[int, int, int], attend: object) -> None:
    queries, keys, values = inputs(heads, 5, 4 * KEY_BLOCK)
    mask = causal([3, 127, 128, 256, 400], 4 * KEY_BLOCK)
    found = attend(queries, keys, values, mask)  # type: ignore[operator]
    assert torch.allclose(found.double(), naive(queries, keys, values, mask), atol=2e-6)


@pytest.mark.parametrize("heads", HEADS)
def test_a_rows_bits_do_not_depend_on_its_companions_or_the_padding(heads: tuple[int, int, int]) -> None:
    queries, keys, values = inputs(heads, 25, 8 * KEY_BLOCK)
    for newest in (3, 127, 128, 250, 256, 300, 700):
        blocks = -(-(newest + 1) // KEY_BLOCK) * KEY_BLOCK
        alone = attend_shared(queries[:1], keys[:blocks], values[:blocks], causal([newest], blocks))
        for rows in (2, 3, 5, 9, 17, 25):
            company = attend_shared(queries[:rows], keys, values, causal([newest] * rows, 8 * KEY_BLOCK))
            assert torch.equal(alone[0], company[0])


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("committed", [5, 126, 127, 128, 250, 255, 256, 300, 520])
def test_a_tree_path_gives_the_bits_of_a_chain_at_the_same_positions(
    heads: tuple[int, int, int], committed: int
) -> None:
    depth, branches = 4, 3
    length = -(-(committed + depth) // KEY_BLOCK) * KEY_BLOCK
    queries, keys, values = inputs(heads, branches, length)
    rows_keys = torch.stack([keys.clone() for _ in range(branches)])
    rows_values = torch.stack([values.clone() for _ in range(branches)])
    rows_keys[:, committed:] = torch.randn_like(rows_keys[:, committed:])
    rows_values[:, committed:] = torch.randn_like(rows_values[:, committed:])
    newest = committed + depth - 1
    mask = causal([newest] * branches, length)
    shared = committed // KEY_BLOCK * KEY_BLOCK
    tree = attend_paths(
        queries, (keys[:shared], values[:shared]), (rows_keys[:, shared:], rows_values[:, shared:]), mask
    )
    for row in range(branches):
        chain = attend_shared(queries[row : row + 1], rows_keys[row], rows_values[row], mask[row : row + 1])
        assert torch.equal(chain[0], tree[row])
        expected = naive(queries[row : row + 1], rows_keys[row], rows_values[row], mask[row : row + 1])
        assert torch.allclose(chain.double(), expected, atol=2e-6)
