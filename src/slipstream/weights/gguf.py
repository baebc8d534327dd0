"""Serve a GGUF file as if it were a Hugging Face checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.weights.gguf_config import architecture, hf_config, kv_heads, query_heads
from slipstream.weights.gguf_header import GgufHeader, read_header
from slipstream.weights.gguf_names import ROPE_FACTORS, hf_name
from slipstream.weights.gguf_tokenizer import chat_template, tokenizer_json
from slipstream.weights.names import PartCut
from slipstream.weights.spans import check_length, index_of, span_along


class GgufSource:
    """The tensors of a GGUF file in float32, by Hugging Face name and layout, with its config and tokenizer."""

    def __init__(self, path: Path) -> None:
        self.header: GgufHeader = read_header(path)
        self.architecture: str = architecture(self.header)
        self._stored: Mapping[str, str] = _stored_names(self.header)

    def names(self) -> tuple[str, ...]:
        """List the tensors, in the file's order."""
        return tuple(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Give a tensor's shape without expanding it."""
        return self.header.tensors[self._find(name)].shape

    def position(self, name: str) -> tuple[str, int]:
        """Say where a tensor lies: the file, and the byte in it."""
        return str(self.header.path), self.header.tensors[self._find(name)].start

    def read(self, name: str, *cuts: PartCut) -> torch.Tensor:
        """Expand one tensor to float32, or what the cuts leave of it; one stored so is a view of the file."""
        stored = self._find(name)
        rows = span_along(0, self.header.tensors[stored].shape, cuts)
        columns = tuple(cut for cut in cuts if cut.dim != 0)
        values = self._rows(stored, rows)
        return torch.from_numpy(values[index_of(columns)] if columns else values)

    def read_into(self, out: torch.Tensor, name: str, *cuts: PartCut) -> None:
        """Fill `out` with the same."""
        check_length(self.header.path, len(self.header.data))
        out.copy_(self.read(name, *cuts))

    def _rows(self, stored: str, rows: range) -> NDArray[np.float32]:
        """Expand some rows of a tensor, in Hugging Face's order; no others than those of the same heads."""
        num_heads = self._reordered_heads(stored)
        if num_heads is None:
            return self.header.array(stored, rows)
        head_len = self.header.tensors[stored].shape[0] // num_heads
        first, last = rows.start // head_len, -(-rows.stop // head_len)
        heads = self.header.array(stored, range(first * head_len, last * head_len))
        start = rows.start - first * head_len
        return _halves_together(heads, last - first)[start : start + len(rows)]

    def _reordered_heads(self, stored: str) -> int | None:
        """Count the heads of a tensor whose rows the converter moved; None where it left them."""
        if self.architecture == "llama" and ".attn_q." in stored:
            return query_heads(self.header)
        if self.architecture == "llama" and ".attn_k." in stored:
            return kv_heads(self.header)
        return None

    def config(self) -> dict[str, Any]:
        """Give what would stand in config.json."""
        return hf_config(self.header)

    def tokenizer_json(self) -> str:
        """Give what would stand in tokenizer.json."""
        return tokenizer_json(self.header)

    def chat_template(self) -> str | None:
        """Give the chat template, if the file carries one."""
        return chat_template(self.header)

    def _find(self, name: str) -> str:
        if name not in self._stored:
            raise ValueError(f"{self.header.path} has no tensor {name}; it is not a whole model")
        return self._stored[name]


def _stored_names(header: GgufHeader) -> dict[str, str]:
    """Map Hugging Face names to the file's, refusing a tensor that no decoder here would use."""
    found = {hf_name(stored): stored for stored in header.tensors if stored != ROPE_FACTORS}
    if None in found:
        raise ValueError(f"{header.path} holds {found[None]}, which has no place in its architecture's decoder")
    return {name: stored for name, stored in found.items() if name is not None}


def _halves_together(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo the converter's reordering of query and key rows.

    llama.cpp's "llama" rotates neighbours (0,1) (2,3) ..; Hugging Face rotates row i with row i + half. Its converter
    moves the rows of each head accordingly; for Qwen it does not, as llama.cpp rotates that one by halves too.
    """
    pairs = values.reshape(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
