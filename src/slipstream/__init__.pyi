# What the lazy names of __init__.py are, for editors and type checkers.
from slipstream.config.sampling import SamplingParams as SamplingParams
from slipstream.serve.llm import LLM as LLM

__version__: str
__all__ = ["LLM", "SamplingParams", "__version__"]
