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

    def read(self, name: str) -> torch.Tensor:
        """Expand one tensor to float32; one stored so is a view of the file."""
        stored = self._find(name)
        values = self.header.array(stored)
        if self.architecture == "llama" and ".attn_q." in stored:
            values = _halves_together(values, query_heads(self.header))
        if self.architecture == "llama" and ".attn_k." in stored:
            values = _halves_together(values, kv_heads(self.header))
        return torch.from_numpy(values)

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
