"""Shapes of known models, for machines that do not hold their checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedShape:
    """What communication depends on."""

    name: str
    hidden_size: int
    num_layers: int


SHAPES: Mapping[str, NamedShape] = {
    shape.name: shape
    for shape in (
        NamedShape(name="llama-3.1-8b", hidden_size=4096, num_layers=32),
        NamedShape(name="llama-3.3-70b", hidden_size=8192, num_layers=80),
        NamedShape(name="qwen3-8b", hidden_size=4096, num_layers=36),
        NamedShape(name="qwen3-32b", hidden_size=5120, num_layers=64),
        NamedShape(name="kimi-k2.5", hidden_size=7168, num_layers=61),
        NamedShape(name="smollm2-135m", hidden_size=576, num_layers=30),
    )
}


def named_shape(name: str) -> NamedShape:
    """Look a shape up.

    Raises:
        ValueError: listing the names there are.
    """
    if name not in SHAPES:
        raise ValueError(f"no shape is called {name}; choose {', '.join(SHAPES)}, or pass --model with a checkpoint")
    return SHAPES[name]
