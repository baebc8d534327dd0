"""Parameters filled piece by piece: whole or a rank's share, from every format."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.torch import save_file
from torch import Tensor, nn

from slipstream.parallel.cut import Span
from slipstream.weights import placing
from slipstream.weights.loader import load_weights
from slipstream.weights.names import NameTable, Part, PartCut
from slipstream.weights.reader import TensorSource, open_source
from tests.unit.weights import tiny_gguf

CPU = torch.device("cpu")
SHAPES = {"a": (24, 10), "b": (12, 10), "c": (9,), "d": (6, 16), "e": (4, 6, 8)}
TENSORS = {
    name: torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float32)
    for name, shape in SHAPES.items()
}


def safetensors(folder: Path) -> None:
    save_file(TENSORS, folder / "model.safetensors")


def two_safetensors(folder: Path) -> None:
    save_file({name: TENSORS[name] for name in "ab"}, folder / "1.safetensors")
    save_file({name: TENSORS[name] for name in "cde"}, folder / "2.safetensors")


def pickle(folder: Path) -> None:
    torch.save(TENSORS, folder / "pytorch_model.bin")


LAYOUTS = (safetensors, two_safetensors, pickle)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "PIECE_ELEMENTS", 50)


class Parameters(nn.Module):
    """Empty parameters of any name."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.empty(0)))


def part(name: str, cut: PartCut | None = None) -> Part:
    return Part(name=name, shape=SHAPES[name], cut=cut)


def table_of(rank: int, size: int) -> NameTable:
    """Stacked rows, rows, columns, and the middle of three dimensions, cut over `size` ranks."""

    def own(name: str, dim: int) -> Part:
        share = SHAPES[name][dim] // size
        return part(name, PartCut(dim=dim, start=rank * share, stop=(rank + 1) * share))

    return {"ab": (own("a", 0), own("b", 0)), "d": (own("d", 1),), "c": (part("c"),), "e": (own("e", 1),)}


def filled(source: TensorSource, table: NameTable, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    module = Parameters(*table)
    load_weights(module, source, table, device=CPU, dtype=dtype)
    return {name: value.data for name, value in module.named_parameters()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_parameters_are_their_parts_stacked(
    tmp_path: Path, layout: Callable[[Path], None], dtype: torch.dtype
) -> None:
    layout(tmp_path)
    found = filled(open_source(tmp_path), table_of(0, 1), dtype)
    expected = {"ab": torch.cat([TENSORS["a"], TENSORS["b"]]), **{name: TENSORS[name] for name in "cde"}}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value.to(dtype)), name


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_ranks_shares_together_are_the_whole(
    tmp_path: Path, layout: Callable[[Path], None], dtype: torch.dtype
) -> None:
    layout(tmp_path)
    shares = [filled(open_source(tmp_path), table_of(rank, 2), dtype) for rank in range(2)]
    for name, dim in (("d", 1), ("e", 1)):
        assert torch.equal(torch.cat([share[name] for share in shares], dim), TENSORS[name].to(dtype))
    for name, rows in (("a", slice(0, 12)), ("b", slice(12, 18))):
        assert torch.equal(torch.cat([share["ab"][rows] for share in shares]), TENSORS[name].to(dtype))
    assert all(torch.equal(share["c"], TENSORS["c"].to(dtype)) for share in shares)
    assert all(share["ab"].untyped_storage().nbytes() == 18 * 10 * dtype.itemsize for share in shares)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["a", "d", "e"])
def test_a_cut_is_the_slice_of_the_whole(tmp_path: Path, layout: Callable[[Path], None], name: str) -> None:
    layout(tmp_path)
    source = open_source(tmp_path)
    cuts = (PartCut(dim=0, start=1, stop=3), PartCut(dim=1, start=2, stop=5))
    for chosen, expected in (
        ((), TENSORS[name]),
        (cuts[:1], TENSORS[name][1:3]),
        (cuts[1:], TENSORS[name][:, 2:5]),
        (cuts, TENSORS[name][1:3, 2:5]),
    ):
        assert torch.equal(source.read(name, *chosen), expected)
        for dtype in (torch.float32, torch.float64):
            out = torch.empty(expected.shape, dtype=dtype)
            source.read_into(out, name, *chosen)
            assert torch.equal(out, expected.to(dtype))


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", [GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0])
@pytest.mark.parametrize("span", [Span(0, 3), Span(24, 48), Span(5, 40), Span(0, 48)])
def test_rows_of_a_gguf_are_those_of_the_whole(
    tmp_path: Path, arch: str, kind: GGMLQuantizationType, span: Span
) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", arch=arch, kind=kind)
    source = open_source(tmp_path)
    rows, columns = PartCut(dim=0, start=span.start, stop=span.stop), PartCut(dim=1, start=8, stop=40)
    for name in source.names():
        whole = source.read(name)
        taken = whole[span.start : span.stop]
        assert torch.equal(source.read(name, rows), taken), name
        if whole.ndim == 2:
            assert torch.equal(source.read(name, rows, columns), taken[:, 8:40]), name
            assert torch.equal(source.read(name, columns), whole[:, 8:40]), name


def test_a_gguf_expands_no_rows_but_those_of_the_heads_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", kind=GGMLQuantizationType.Q8_0)
    source = open_source(tmp_path)
    expanded: list[tuple[int, ...]] = []

    def count(packed: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
        expanded.append(packed.shape)
        return dequantize(packed, kind)

    monkeypatch.setattr("slipstream.weights.gguf_header.dequantize", count)
    source.read("model.layers.0.self_attn.q_proj.weight", PartCut(dim=0, start=30, stop=50))
    source.read("model.layers.0.mlp.up_proj.weight", PartCut(dim=0, start=30, stop=50))
    assert [shape[0] for shape in expanded] == [48, 20]


class Watched:
    """A source that counts what is asked of it, and may fail."""

    def __init__(self, tensors: Mapping[str, Tensor], failing: Mapping[str, str] | None = None) -> None:
        self.tensors = tensors
        self.failing = failing or {}
        self.largest = 0
        self.total = 0
        self.asked: list[str] = []
        self.lock = threading.Lock()

    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def position(self, name: str) -> tuple[str, int]:
        return "backwards", -list(self.tensors).index(name)

    def read(self, name: str, *cuts: PartCut) -> Tensor:
        raise AssertionError("the loader fills what is there already")

    def read_into(self, out: Tensor, name: str, *cuts: PartCut) -> None:
        with self.lock:
            self.largest = max(self.largest, out.numel())
            self.total += out.numel()
            self.asked.append(name)
        if name in self.failing:
            raise ValueError(self.failing[name])
        value = self.tensors[name]
        for cut in cuts:
            value = value.narrow(cut.dim, cut.start, cut.stop - cut.start)
        out.copy_(value)


def test_a_rank_reads_its_share_alone_and_a_piece_at_a_time() -> None:
    source = Watched(TENSORS)
    filled(source, table_of(1, 2))
    whole = sum(tensor.numel() for tensor in TENSORS.values())
    assert source.total == (whole + TENSORS["c"].numel()) // 2
    assert source.largest <= 50


def test_progress_is_told_on_the_callers_thread_what_was_placed() -> None:
    told: list[tuple[int, str]] = []
    table = table_of(0, 2)
    module = Parameters(*table)

    def on_tensor(num_bytes: int) -> None:
        told.append((num_bytes, threading.current_thread().name))

    load_weights(module, Watched(TENSORS), table, device=CPU, dtype=torch.bfloat16, on_tensor=on_tensor)
    assert sorted(size for size, _ in told) == sorted(2 * value.numel() for value in module.parameters())
    assert {name for _, name in told} == {threading.current_thread().name}


def test_of_several_failures_the_first_of_the_table_is_told() -> None:
    for failing in (("d", "e"), ("b", "e"), ("c",)):
        source = Watched(TENSORS, {name: f"{name} is unreadable" for name in failing})
        with pytest.raises(ValueError, match=f"^{failing[0]} is unreadable$"):
            filled(source, table_of(0, 2))


def test_pieces_are_read_in_the_order_in_which_they_lie(tmp_path: Path) -> None:
    two_safetensors(tmp_path)
    source = open_source(tmp_path)
    pieces = placing.in_file_order(source, table_of(0, 1))
    places = [(source.position(piece.name), piece.cuts[0].start) for piece in pieces]
    assert places == sorted(places)
    assert len({file for (file, _), _ in places}) == 2


def test_after_a_failure_only_what_the_table_has_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "NUM_AHEAD", 1)
    source = Watched(TENSORS, {"c": "c is unreadable"})  # the files have e, d, c, b, a; the table a and b, d, c, e
    with pytest.raises(ValueError, match="c is unreadable"):
        filled(source, table_of(0, 1))
    assert set(source.asked) == set("abcde")
    source = Watched(TENSORS, {"d": "d is unreadable"})
    with pytest.raises(ValueError, match="d is unreadable"):
        filled(source, table_of(0, 1))
    assert set(source.asked) == set("abde")


def test_no_reader_outlives_a_load() -> None:
    source: Any = Watched(TENSORS, {"d": "d is unreadable"})
    with pytest.raises(ValueError, match="d is unreadable"):
        filled(source, table_of(0, 1))
    filled(Watched(TENSORS), table_of(0, 1))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_shrinks_after_it_was_opened_is_one_sentence(
    tmp_path: Path, layout: Callable[[Path], None]
) -> None:
    layout(tmp_path)
    source = open_source(tmp_path)
    for path in tmp_path.iterdir():
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
    with pytest.raises(ValueError, match=r"became shorter while it was read; wait .*, or download it again$"):
        filled(source, table_of(0, 1))


def test_a_parameter_that_the_model_lacks_is_named_before_anything_is_read() -> None:
    source = Watched(TENSORS)
    with pytest.raises(ValueError, match="the model has no parameter 'e' for checkpoint tensor 'e'"):
        load_weights(Parameters("ab", "c", "d"), source, table_of(0, 1), device=CPU, dtype=torch.float32)
    assert source.total == 0


def test_large_parameters_lie_in_memory_of_their_own(tmp_path: Path) -> None:
    big = torch.arange(1 << 20, dtype=torch.float32).reshape(1024, 1024)
    save_file({"big": big, "scalar": torch.tensor(3.0)}, tmp_path / "model.safetensors")
    source = open_source(tmp_path)
    table = {"big": (Part(name="big", shape=(1024, 1024)),)}
    module = Parameters("big")
    load_weights(module, source, table, device=CPU, dtype=torch.float32, also_known=("scalar",))
    assert torch.equal(next(module.parameters()), big)
    for dtype in (torch.float32, torch.float64):
        out = torch.empty((), dtype=dtype)
        source.read_into(out, "scalar")
        assert out == 3.0
