"""The same weights in transformers, in fp32, decoding one prompt at a time as its users do."""

from collections.abc import Iterable, Sequence
from importlib import import_module, util
from pathlib import Path
from typing import Any

import torch

from slipstream.weights.gguf import GgufSource

TIED_HEAD = "lm_head.weight"


def has_transformers() -> bool:
    """Whether transformers is installed; it is optional."""
    return util.find_spec("transformers") is not None


class Reference:
    """A transformers model."""

    def __init__(self, path: Path) -> None:
        """path: a model's directory, or a .gguf file, whose weights our own reader provides."""
        transformers = import_module("transformers")
        if path.suffix == ".gguf":
            self._model = _from_gguf(transformers, GgufSource(path))
        else:
            self._model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self._model.eval()
        self._model.generation_config = transformers.GenerationConfig()  # a checkpoint's own may penalise repetition

    def generate(self, prompt: Sequence[int], *, max_tokens: int, eos_ids: Iterable[int]) -> tuple[int, ...]:
        """Decode greedily; the answer's ids, with the one that ended it."""
        prompt_1T, ends = torch.tensor([list(prompt)]), sorted(eos_ids)
        found_1T = self._model.generate(
            prompt_1T,
            attention_mask=torch.ones_like(prompt_1T),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,
        )
        return tuple(found_1T[0, len(prompt) :].tolist())


def _from_gguf(transformers: Any, source: GgufSource) -> Any:
    raw = source.config()
    config = transformers.AutoConfig.for_model(**raw)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    found = model.load_state_dict({name: source.read(name) for name in source.names()}, strict=False)
    tied = {TIED_HEAD} if config.tie_word_embeddings else set()
    assert not found.unexpected_keys, f"tensors without a place: {found.unexpected_keys}"
    assert set(found.missing_keys) <= tied, f"places without a tensor: {found.missing_keys}"
    model.tie_weights()
    return model
