"""A tiny model with a tokenizer and a chat template, a draft for it, and a way to run the command line in-process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.cli.main import main
from slipstream.draft.checkpoint import save_draft
from slipstream.models.registry import load_target
from slipstream.runner.load import read_model_config
from slipstream.weights.reader import open_source
from tests.tiny import write_tiny
from tests.tiny_engine import tiny_draft
from tests.unit.text import tiny_tokenizer

CPU = torch.device("cpu")
CONTEXT = 256
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
PROMPTS = ("the quick brown fox", "def main() -> None:", "the lazy dog sleeps", "1234 + 5678")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Paths of what `make_world` wrote."""

    model: str
    draft: str
    prompts: str

    @property
    def prompts_path(self) -> Path:
        return Path(self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run of the command line ended."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error:")]

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def make_world(folder: Path) -> World:
    """Write a model, a draft that agrees with it now and then, and a file of prompts."""
    raw = tiny_tokenizer.raw()
    eos = raw.token_to_id(tiny_tokenizer.EOS)
    model = folder / "model"
    write_tiny(
        model,
        vocab_size=raw.get_vocab_size(),
        max_position_embeddings=CONTEXT,
        eos_token_id=eos,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    tiny_tokenizer.save(model, tokenizer=raw, config={"chat_template": TEMPLATE})
    write_draft(model, folder / "draft")
    prompts = folder / "prompts.jsonl"
    lines = [{"prompt": text, "task": "odd" if place % 2 else "even"} for place, text in enumerate(PROMPTS)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return World(model=str(model), draft=str(folder / "draft"), prompts=str(prompts))


def write_draft(model: Path, path: Path) -> None:
    config = read_model_config(model)
    target = load_target(config, open_source(model), device=CPU, dtype=torch.float32, max_position=CONTEXT)
    draft = tiny_draft(target, draft_vocab_size=360)
    save_draft(path, draft.model, draft.target_ids, target=config, dtype=torch.float32)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    """Run the command line and collect what it printed."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    code = ended.value.code
    return Outcome(code=code if isinstance(code, int) else int(code is not None), out=out, err=err)


Cli = Callable[..., Outcome]
