"""Read what a GGUF file says about itself, and its arrays as numpy: no torch here, so that text/ may use it.

The `gguf` package parses each of 100,000 tokenizer strings through a memory map: 2.4 s for a 135M model against
0.1 s here, and a corrupt count can send it round a loop without end. So the header is walked here, every length
checked against the bytes that are left; the quantised blocks stay with the package, which is their reference.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUF_MAGIC, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize
from numpy.typing import NDArray

SCALARS: Mapping[GGUFValueType, str] = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """Where one tensor lies."""

    name: str  # llama.cpp's name: blk.0.attn_q.weight
    shape: tuple[int, ...]  # outermost first, as torch counts
    kind: GGMLQuantizationType
    start: int  # byte offset in the file
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """A file's metadata, and where its tensors lie."""

    path: Path
    metadata: Mapping[str, Any]  # scalars, strings and lists of either
    tensors: Mapping[str, GgufTensor]  # by llama.cpp's name, in the file's order
    data: NDArray[np.uint8]  # the whole file, mapped copy-on-write

    def require(self, key: str) -> Any:
        """Give a metadata value, or say that the file lacks it."""
        if key not in self.metadata:
            raise ValueError(f"{self.path} has no {key} in its metadata; convert the model again")
        return self.metadata[key]

    def array(self, name: str, rows: range | None = None) -> NDArray[np.float32]:
        """Give one tensor, or some of its rows, in float32, dequantised; a view of the file where it is stored so."""
        tensor = self.tensors[name]
        if rows is not None and len(tensor.shape) == 1:
            return self.array(name)[rows.start : rows.stop]  # one row of the format, which keeps its blocks together
        raw = self.data[tensor.start : tensor.start + tensor.num_bytes]
        block_len, block_bytes = GGML_QUANT_SIZES[tensor.kind]
        packed = raw.reshape(*tensor.shape[:-1], tensor.shape[-1] // block_len * block_bytes)
        try:
            return dequantize(packed if rows is None else packed[rows.start : rows.stop], tensor.kind)
        except NotImplementedError:
            raise ValueError(
                f"{self.path} stores {name} as {tensor.kind.name}, which the gguf package cannot expand; "
                "use a file of another quantisation, such as Q8_0 or Q4_K_M"
            ) from None


def read_header(path: Path) -> GgufHeader:
    """Parse the header of a GGUF file, checking every length against the file's size."""
    if path.stat().st_size < 4:
        raise ValueError(f"{path} is too short to be a GGUF file; download it again")
    data = np.asarray(np.memmap(path, mode="c"))
    cursor = _Cursor(path=path, data=data)
    _check_magic(cursor)
    num_tensors, num_keys = cursor.scalar("<u8"), cursor.scalar("<u8")
    metadata = {cursor.string(): cursor.value(cursor.kind()) for _ in range(num_keys)}
    tensors = [cursor.tensor() for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise cursor.damaged("general.alignment is not a positive number")
    base = math.ceil(cursor.offset / alignment) * alignment
    placed = {tensor.name: _place(tensor, base, path=path, size=len(data)) for tensor in tensors}
    return GgufHeader(path=path, metadata=metadata, tensors=placed, data=data)


def _check_magic(cursor: "_Cursor") -> None:
    """Refuse what is not GGUF, or not of a version known here."""
    if cursor.scalar("<u4") != GGUF_MAGIC:
        raise ValueError(f"{cursor.path} is not a GGUF file (its first four bytes are not GGUF); check the path")
    version = cursor.scalar("<u4")
    if version not in VERSIONS:
        raise ValueError(f"{cursor.path} is GGUF version {version}; convert it to version 3, little-endian")


def _place(tensor: GgufTensor, base: int, *, path: Path, size: int) -> GgufTensor:
    """Turn an offset inside the data section into one inside the file, which must hold it."""
    start = base + tensor.start
    if start + tensor.num_bytes > size:
        raise ValueError(
            f"{path} is cut short: {tensor.name} should end at byte {start + tensor.num_bytes} of {size}; "
            "download it again"
        )
    return replace(tensor, start=start)


@dataclass(slots=True, kw_only=True)
class _Cursor:
    """A place in the header, that never reads past the end of the file."""

    path: Path
    data: NDArray[np.uint8]
    offset: int = 0

    def damaged(self, why: str) -> ValueError:
        """Word the one error that a broken header gives."""
        return ValueError(f"{self.path} has a damaged GGUF header ({why}, byte {self.offset}); download it again")

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Step over bytes and give them."""
        if num_bytes > len(self.data) - self.offset:
            raise self.damaged("it runs past the end of the file")
        start, self.offset = self.offset, self.offset + num_bytes
        return self.data[start : self.offset]

    def scalar(self, code: str) -> Any:
        """Read one number."""
        return self.take(np.dtype(code).itemsize).view(code).tolist()[0]

    def string(self) -> str:
        """Read a length and that many bytes of UTF-8."""
        (length,) = struct.unpack("<Q", self.take(8).data)
        try:
            return str(self.take(length).data, "utf-8")
        except UnicodeDecodeError:
            raise self.damaged("a string is not UTF-8") from None

    def kind(self) -> GGUFValueType:
        """Read the type of a metadata value."""
        code = self.scalar("<u4")
        try:
            return GGUFValueType(code)
        except ValueError:
            raise self.damaged(f"value type {code} does not exist") from None

    def value(self, kind: GGUFValueType) -> Any:
        """Read one metadata value of a given type."""
        if kind is GGUFValueType.STRING:
            return self.string()
        if kind is GGUFValueType.ARRAY:
            return self.items(self.kind(), self.scalar("<u8"))
        return self.scalar(SCALARS[kind])

    def items(self, kind: GGUFValueType, length: int) -> list[Any]:
        """Read an array of strings or numbers."""
        if kind is GGUFValueType.STRING:
            return [self.string() for _ in range(length)]
        if kind is GGUFValueType.ARRAY:
            raise self.damaged("an array holds arrays")
        code = SCALARS[kind]
        return self.take(length * np.dtype(code).itemsize).view(code).tolist()

    def tensor(self) -> GgufTensor:
        """Read the entry of one tensor; its offset still counts from the data section."""
        name = self.string()
        num_dims = self.scalar("<u4")
        if not 1 <= num_dims <= MAX_DIMS:
            raise self.damaged(f"{name} has {num_dims} dimensions")
        shape = tuple(reversed([self.scalar("<u8") for _ in range(num_dims)]))
        kind = self.quantisation(name)
        block_len, block_bytes = GGML_QUANT_SIZES[kind]
        if 0 in shape or shape[-1] % block_len:
            raise self.damaged(f"{name} has rows of {shape[-1]}, not whole blocks of {block_len}")
        num_bytes = math.prod(shape) // block_len * block_bytes
        return GgufTensor(name=name, shape=shape, kind=kind, start=self.scalar("<u8"), num_bytes=num_bytes)

    def quantisation(self, name: str) -> GGMLQuantizationType:
        """Read how a tensor is stored."""
        code = self.scalar("<u4")
        try:
            return GGMLQuantizationType(code)
        except ValueError:
            raise self.damaged(f"{name} has the unknown quantisation {code}") from None
