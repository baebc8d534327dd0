"""Packed linear layers: right, and a row's bits do not depend on how many rows it came with."""

import pytest
import torch

from slipstream.layers.linear import Linear


@pytest.mark.parametrize(("num_in", "num_out"), [(576, 960), (576, 3072), (1536, 576), (1728, 576), (64, 120)])
def test_packed_rows_are_independent_of_their_number(num_in: int, num_out: int) -> None:
    torch.manual_seed(0)
    layer = Linear(num_in, num_out, bias=True)
    torch.nn.init.normal_(layer.weight)
    assert layer.bias is not None
    torch.nn.init.normal_(layer.bias)
    rows = torch.randn(130, num_in)
    with torch.inference_mode():
        expected = layer(rows)
        layer.pack()
        if layer.packed is None:
            pytest.skip("torch has no oneDNN here")
        alone = torch.cat([layer(rows[index : index + 1]) for index in range(len(rows))])
        for count in (1, 2, 3, 4, 5, 8, 17, 64, 65, 130):
            assert torch.equal(layer(rows[:count]), alone[:count])
    assert torch.allclose(alone, expected, atol=1e-3)
