# What the lazy name of __init__.py is, for editors and type checkers.
from slipstream.serve.llm import LLM as LLM

__all__ = ["LLM"]
