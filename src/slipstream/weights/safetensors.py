"""One .safetensors file: views of it, and its bytes read straight to where they belong.

A view is mapped memory, and a file that shrinks or fails beneath one ends the process. `read_into` asks the system for
the bytes instead: several threads may do so at once, and what goes wrong comes back as an error.
"""

import json
import math
import os
import struct
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from slipstream.weights.names import PartCut
from slipstream.weights.spans import damaged, index_of, known, shortened, span_along

DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """Where one tensor lies; asking safetensors for a view would read the first pages of every tensor."""

    dtype: torch.dtype | None  # None: one that only safetensors knows
    shape: tuple[int, ...]
    start: int  # byte offset in the file


class SafetensorsSource:
    """One .safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        try:
            self._file: Any = safe_open(path, framework="pt")
            self._descriptor: int = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from None
        weakref.finalize(self, os.close, self._descriptor)
        self._stored: Mapping[str, _Stored] = _read_header(self._descriptor)

    def names(self) -> tuple[str, ...]:
        """List the tensors."""
        return tuple(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Give a tensor's shape from the header."""
        return self._stored[known(name, self._stored, self.path)].shape

    def position(self, name: str) -> tuple[str, int]:
        """Say where a tensor lies: the file, and the byte in it."""
        return str(self.path), self._stored[known(name, self._stored, self.path)].start

    def read(self, name: str, *cuts: PartCut) -> torch.Tensor:
        """Give one tensor, or what the cuts leave of it, as a view of the file."""
        known(name, self._stored, self.path)
        return self._file.get_slice(name)[index_of(cuts)] if cuts else self._file.get_tensor(name)

    def read_into(self, out: torch.Tensor, name: str, *cuts: PartCut) -> None:
        """Fill `out`; columns are cut, and dtypes changed, from whole rows in between."""
        stored = self._stored[known(name, self._stored, self.path)]
        if stored.dtype is None:
            out.copy_(self.read(name, *cuts))
            return
        rows = span_along(0, stored.shape, cuts)
        columns = tuple(cut for cut in cuts if cut.dim != 0)
        start = stored.start + rows.start * math.prod(stored.shape[1:]) * stored.dtype.itemsize
        if not columns and out.dtype == stored.dtype and out.is_contiguous():
            self._fill(out, start)
            return
        between = torch.empty((len(rows), *stored.shape[1:]) if stored.shape else (), dtype=stored.dtype)
        self._fill(between, start)
        out.copy_(between[index_of(columns)])

    def _fill(self, out: torch.Tensor, start: int) -> None:
        """Read the bytes of a contiguous tensor."""
        missing = out.view(-1).view(torch.uint8).numpy().data
        while missing:
            try:
                num_read = os.preadv(self._descriptor, [missing], start)
            except OSError as error:
                raise ValueError(f"{self.path} cannot be read ({error.strerror}); check the disk it lies on") from None
            if num_read == 0:
                raise shortened(self.path)
            start += num_read
            missing = missing[num_read:]


def _read_header(descriptor: int) -> dict[str, _Stored]:
    """Find what lies where in a file whose header has been checked."""
    (header_len,) = struct.unpack("<Q", os.pread(descriptor, 8, 0))
    entries = json.loads(os.pread(descriptor, header_len, 8))
    entries.pop("__metadata__", None)
    return {
        name: _Stored(
            dtype=DTYPES.get(entry["dtype"]),
            shape=tuple(entry["shape"]),
            start=8 + header_len + entry["data_offsets"][0],
        )
        for name, entry in entries.items()
    }
