"""Head norms, RoPE and the store against their twin: on a CUDA device, elsewhere under Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from slipstream.kernels.keys import Keys
from slipstream.kernels.qkv import rotate_and_store
from slipstream.kernels.twins import rotate_and_store_twin

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "width"), [(6, 2, 24), (3, 3, 64)])
def test_queries_turn_and_keys_and_values_find_their_slots(
    with_norms: bool, num_heads: int, num_kv_heads: int, width: int
) -> None:
    qkv = torch.randn(4, (num_heads + 2 * num_kv_heads) * width).to(DEVICE)
    tables = (torch.randn(10, width // 2).to(DEVICE), torch.randn(10, width // 2).to(DEVICE))
    newest, writes = torch.tensor([[1, 4], [10, 41]]).to(DEVICE), torch.tensor([[3, 1], [6, -1]]).to(DEVICE)
    pages = torch.tensor([[1, 0], [2, 7]], dtype=torch.int32).to(DEVICE)
    keys_of = Keys(pages=pages, page=4, newest=newest, most=64, first=1, writes=writes)
    positions, slots = (newest - 1).flatten(), torch.tensor([7, 5, 30, 0]).to(DEVICE)
    norms = (torch.rand(width).to(DEVICE), torch.rand(width).to(DEVICE)) if with_norms else None
    keys, values = (torch.randn(32, num_kv_heads, width).to(DEVICE) for _ in "kv")
    pool, twin_pool = (keys.clone(), values.clone()), (keys, values)
    options = {"num_heads": num_heads, "norms_K": norms, "eps": 1e-5}
    found = rotate_and_store(qkv, keys_of, tables, pool, **options)
    wanted = rotate_and_store_twin(qkv, positions, slots, tables, twin_pool, **options)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pool[0], keys, rtol=1e-5, atol=1e-5)
    assert torch.equal(pool[1], values)
