"""A tiny target, a draft that has learnt its answers, and folders in which something is wrong."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from slipstream.config.draft import CaptureConvention
from slipstream.doctor.checkpoint import declared_layers, load_patient, open_draft
from slipstream.doctor.evidence import Evidence, capture
from slipstream.doctor.hypotheses import search, trial_of
from slipstream.doctor.verdict import Verdict, judge
from slipstream.draft.checkpoint import save_draft
from slipstream.models.decoder import Decoder
from slipstream.train.answer import Answerer, AnswerOptions
from slipstream.train.conversations import Conversation, pack
from slipstream.train.journal import Journal
from slipstream.train.loop import Trainer
from slipstream.train.options import LoopOptions, LossOptions
from slipstream.train.teacher import DraftVocabulary
from tests.tiny_engine import CPU, TINY, some_prompts, tiny_draft, tiny_target

TRAIN_STEPS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target, the folder of its draft, and the text on which they are examined."""

    target: Decoder
    folder: Path
    evidence: Evidence


def answers(target: Decoder, *, count: int = 16, seed: int = 3) -> list[Conversation]:
    options = AnswerOptions(max_tokens=24, batch=16, stop_ids=())
    prompts = some_prompts(count, seed=seed, longest=12)
    return Answerer(target, options).answer(prompts, [0.0] * count)


def make_pair(folder: Path) -> Pair:
    """Train a draft on what its target says."""
    target = tiny_target(scale=3.0)
    draft = tiny_draft(target, draft_vocab_size=110)
    draft.model.embed.weight.requires_grad_(False)
    ids = draft.target_ids.numpy().astype(np.int64)
    said = answers(target)
    Trainer(
        draft=draft.model,
        target=target,
        vocabulary=DraftVocabulary.of(ids, target_vocab_size=TINY.vocab_size, device=CPU),
        conversations=pack(said),
        loss=LossOptions(steps=4),
        loop=LoopOptions(steps=TRAIN_STEPS, lr=1e-2, batch_tokens=1024, log_every=1000),
        journal=Journal(None, say=lambda text: None),
    ).run()
    save_draft(folder, draft.model.eval(), draft.target_ids, target=TINY, dtype=torch.float32)
    return Pair(target=target, folder=folder, evidence=capture(target, said))


def examined(pair: Pair, folder: Path) -> Verdict:
    """What the doctor says of a folder."""
    files = open_draft(folder)
    layers = declared_layers(files, TINY, CaptureConvention.AUTO)
    assert layers is not None
    patient = load_patient(files, pair.target, layers)
    return judge(search(patient, trial_of(patient, pair.evidence)), num_layers=TINY.num_layers)


def copied(source: Path, folder: Path, *, config: dict | None = None, tensors: dict | None = None) -> Path:
    """A copy of a draft's folder with some keys and tensors replaced; None takes one away."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = {**json.loads((source / "config.json").read_text()), **(config or {})}
    (folder / "config.json").write_text(json.dumps(raw))
    changed = {**load_file(source / "model.safetensors"), **(tensors or {})}
    save_file({name: value for name, value in changed.items() if value is not None}, folder / "model.safetensors")
    return folder


def tensor(folder: Path, name: str) -> torch.Tensor:
    return load_file(folder / "model.safetensors")[name]


def with_ids(*layers: int) -> dict:
    """A config that names layers after which states are taken."""
    ids = list(layers)
    return {
        "eagle_aux_hidden_state_layer_ids": ids,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "capture_convention": "input"},
    }
