"""Damaged GGUF files end in one sentence, never in a hang or another library's traceback."""

import contextlib
import struct
from pathlib import Path

import pytest
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.weights.gguf_header import read_header
from tests.unit.weights import tiny_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    tiny_gguf.write(path)
    return path


def test_metadata_and_places_agree_with_the_gguf_package(whole: Path) -> None:
    ours, theirs = read_header(whole), GGUFReader(whole)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents(), key
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert (found.start, found.num_bytes, found.kind) == (tensor.data_offset, tensor.n_bytes, tensor.tensor_type)
        assert found.shape == tuple(reversed(tensor.shape.tolist()))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.2, 0.5, 0.9, 0.9999])
def test_a_file_cut_short_is_one_sentence(whole: Path, tmp_path: Path, share: float) -> None:
    content = whole.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ValueError, match=r"cut\.gguf .*; download it again$"):
        read_header(cut)


@pytest.mark.parametrize(
    ("offset", "code", "value", "words"),
    [
        (0, "<I", 0x12345678, "is not a GGUF file"),
        (4, "<I", 1, "is GGUF version 1"),
        (4, "<I", 0x03000000, "little-endian"),
        (8, "<Q", 2**60, "damaged GGUF header"),
        (16, "<Q", 2**60, "damaged GGUF header"),
        (24, "<Q", 2**60, "runs past the end of the file"),
    ],
)
def test_a_wrong_field_is_named(whole: Path, tmp_path: Path, offset: int, code: str, value: int, words: str) -> None:
    content = bytearray(whole.read_bytes())
    struct.pack_into(code, content, offset, value)
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_header(bad)


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, 15_000), byte=st.integers(0, 255))
def test_any_one_wrong_byte_reads_or_is_one_sentence(whole: Path, place: int, byte: int) -> None:
    content = bytearray(whole.read_bytes())
    content[place] = byte
    bad = whole.parent / "bad.gguf"
    bad.write_bytes(content)
    with contextlib.suppress(ValueError):  # and no other error, nor a hang
        read_header(bad)
