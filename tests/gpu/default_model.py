"""The default model on a CUDA device, and the prompts that it is asked."""

import os
from pathlib import Path

import pytest
import torch

from slipstream import LLM
from slipstream.bench.cpu import prompt_ids
from slipstream.text.prompts import builtin_prompts, read_prompts
from slipstream.weights.store import cache_dir

MODEL = "smollm2-135m"
NEEDS_MODEL = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not (cache_dir() / "models" / MODEL).exists(), reason=f"slipstream pull {MODEL} first"),
]


def prompts_of(llm: LLM) -> list[list[int]]:
    """Of SLIPSTREAM_PROMPTS, the first 80 of mt_bench.jsonl in that folder; else the built-in ones."""
    folder = os.environ.get("SLIPSTREAM_PROMPTS")
    entries = read_prompts(Path(folder) / "mt_bench.jsonl")[:80] if folder else builtin_prompts()
    return [list(each) for each in prompt_ids(llm, entries)]
