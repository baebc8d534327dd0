"""The two doors. `LLM` is loaded when it is first asked for."""

from importlib import import_module

__all__ = ["LLM"]


def __getattr__(name: str) -> object:
    if name != "LLM":
        raise AttributeError(f"module 'slipstream.serve' has no attribute {name!r}")
    return import_module("slipstream.serve.llm").LLM
