"""EAGLE-3 speculative decoding. `from slipstream import LLM, SamplingParams`; nothing heavy loads before it is used."""

from importlib import import_module

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

_HOMES = {"LLM": "slipstream.serve.llm", "SamplingParams": "slipstream.config.sampling"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
