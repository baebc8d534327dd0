"""Open the target that answers and teaches: model, tokenizer and template from one path."""

import hashlib
from dataclasses import dataclass

import torch

from slipstream.config.hf import model_config
from slipstream.models.decoder import Decoder
from slipstream.models.registry import load_target
from slipstream.text.template import ChatTemplate, load_template
from slipstream.text.tokenizer import Tokenizer, load_tokenizer
from slipstream.weights.folder import read_config
from slipstream.weights.reader import open_source
from slipstream.weights.store import resolve_model


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTarget:
    """A target and its words."""

    model: Decoder
    tokenizer: Tokenizer
    template: ChatTemplate | None
    stop_ids: tuple[int, ...]

    @property
    def mark(self) -> str:
        """A short name for the model's shape and words, to tell its answers from another model's."""
        described = f"{self.model.config} {self.tokenizer.vocab_size} {self.stop_ids}"
        return hashlib.sha256(described.encode()).hexdigest()[:16]


def open_target(name: str, *, device: torch.device, dtype: torch.dtype) -> OpenTarget:
    """Load a target by directory, .gguf file, pulled name or hub id.

    Raises:
        ValueError: it is not here, damaged or not supported.
    """
    path = resolve_model(name)
    config = model_config(read_config(path))
    model = load_target(config, open_source(path), device=device, dtype=dtype, max_position=config.max_position)
    tokenizer = load_tokenizer(path)
    stop_ids = tuple(sorted({*tokenizer.eos_ids, *config.eos_ids}))
    return OpenTarget(model=model, tokenizer=tokenizer, template=load_template(path), stop_ids=stop_ids)
