"""Evaluation prompts for the slow tests: a folder that SLIPSTREAM_PROMPTS names; nothing of it ships with the repo."""

import os
from pathlib import Path

import pytest

from slipstream.text.prompts import PromptEntry, read_prompts


def evaluation_prompts(name: str) -> list[PromptEntry]:
    """One evaluation set, or a loud skip."""
    folder = os.environ.get("SLIPSTREAM_PROMPTS")
    if not folder:
        pytest.skip("SLIPSTREAM_PROMPTS is not set: name a folder with mt_bench.jsonl, gsm8k.jsonl and humaneval.jsonl")
    file = Path(folder) / f"{name}.jsonl"
    if not file.is_file():
        pytest.skip(f"SLIPSTREAM_PROMPTS has no {file.name}")
    return read_prompts(file)
