"""Layers cut over a group: partial sums meet once, a bias is added once, ids elsewhere add nothing."""

from dataclasses import replace

import pytest
import torch

from slipstream.config.model import ModelConfig
from slipstream.layers.embedding import Embedding, read
from slipstream.layers.linear import RowLinear
from slipstream.models.llama import build
from slipstream.parallel.cut import span_of
from slipstream.parallel.group import Group, SoloGroup
from slipstream.weights.cut import cut_table
from slipstream.weights.names import decoder_names
from tests.tiny_engine import TINY
from tests.together import together

SIZES = [2, 3, 4]
ROWS = 6


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("size", SIZES)
def test_a_row_linears_bias_is_added_once(size: int, packed: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(10, 70, generator=generator), torch.full((10,), 100.0)
    x_TI = torch.randn(ROWS, 70, generator=generator)

    @torch.no_grad()
    def run(group: Group) -> torch.Tensor:
        span = span_of(70, group.rank, group.size)
        layer = RowLinear(len(span), 10, group=group, name="test", bias=True)
        layer.weight.data, layer.bias.data = weight[:, span.start : span.stop].contiguous(), bias  # type: ignore[union-attr]
        if packed:
            layer.pack()
        return layer(x_TI[:, span.start : span.stop])

    found = together(size, run)
    assert all(torch.equal(each, found[0]) for each in found)
    assert torch.allclose(found[0], x_TI @ weight.T + bias, atol=1e-4)


@pytest.mark.parametrize("vocab_size", [96, 121, 10])
@pytest.mark.parametrize("size", SIZES)
def test_every_rank_looks_up_what_the_whole_table_holds(vocab_size: int, size: int) -> None:
    table = torch.randn(vocab_size, 12, generator=torch.Generator().manual_seed(0))
    tokens_T = torch.arange(vocab_size)

    @torch.no_grad()
    def look_up(group: Group) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        layer = Embedding(vocab_size, 12, group=group)
        layer.weight.data = table[layer.span.start : layer.span.stop]
        tag_1D = torch.zeros(1, 12)
        tag_1D[0, group.rank] = group.rank + 1.0
        rows, tag_1D = layer.look_up(tokens_T, tag_1D)
        return read(rows), tag_1D, layer(tokens_T)

    for rows_TD, tag_1D, alone_TD in together(size, look_up):
        assert torch.equal(rows_TD, table)
        assert torch.equal(alone_TD, table)
        assert tag_1D is not None
        assert tag_1D[0].tolist() == [*range(1, size + 1), *[0] * (12 - size)]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_is_read_fits_the_layers_that_a_rank_builds(size: int) -> None:
    config = replace(TINY, intermediate_size=75, vocab_size=121, qkv_bias=True, output_bias=True)

    def shapes(group: Group) -> dict[str, tuple[int, ...]]:
        return read_shapes(config, group if size > 1 else SoloGroup())

    for rank, found in enumerate(together(size, shapes)):
        assert found == built_shapes(config, rank, size)


def read_shapes(config: ModelConfig, group: Group) -> dict[str, tuple[int, ...]]:
    """Of every parameter, stacked from its parts."""
    stacked = {}
    for name, parts in cut_table(decoder_names(config), config, group).items():
        first, *_ = (part.own_shape for part in parts)
        stacked[name] = (sum(part.own_shape[0] for part in parts), *first[1:])
    return stacked


def built_shapes(config: ModelConfig, rank: int, size: int) -> dict[str, tuple[int, ...]]:
    class Place(SoloGroup):
        """Only says where it is."""

    place = Place()
    place.rank, place.size = rank, size
    with torch.device("meta"):
        model = build(config, group=place, max_position=64)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
