"""Pairs of a tiny target and its draft on disk, and what may excuse a token that differs between cuts: a near tie."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slipstream import LLM, SamplingParams
from slipstream.attention.dense import DenseAttend
from slipstream.draft.checkpoint import save_draft
from slipstream.kernels.noise import gumbel_noise
from slipstream.models.decoder import Decoder
from slipstream.models.registry import load_target
from slipstream.runner.load import read_model_config
from slipstream.serve.completion import Completion
from slipstream.verify.distribution import filtered_scores, sampling_rows
from slipstream.weights.reader import open_source
from tests.tiny import write_tiny
from tests.tiny_engine import CPU, tiny_draft
from tests.unit.text import tiny_tokenizer

CONTEXT = 256
NEAR_TIE = 1e-3  # of the two best scores; another order of sums moves them by less


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Where a target and its draft are."""

    model: Path
    draft: Path


def write_pair(folder: Path, kind: str = "llama", *, draft_vocab_size: int = 90, **overrides: Any) -> Pair:
    """Write a tiny target with a tokenizer, and a draft that agrees with it now and then."""
    model, draft = folder / "model", folder / "draft"
    sizes = {"vocab_size": 120, "max_position_embeddings": CONTEXT, "num_hidden_layers": 4}
    write_tiny(model, kind, **{**sizes, **overrides})
    tiny_tokenizer.save(model, config={})  # prompts are ids: its vocabulary is larger than the model's
    write_draft(model, draft, draft_vocab_size=draft_vocab_size)
    return Pair(model=model, draft=draft)


def write_draft(model: Path, path: Path, *, draft_vocab_size: int = 90, seed: int = 1) -> None:
    """Write a draft for the target in a folder."""
    config = read_model_config(model)
    target = load_target(config, open_source(model), device=CPU, dtype=torch.float32, max_position=CONTEXT)
    captures = tuple(range(2, config.num_layers + 1))  # the last of them is what the target's head reads
    draft = tiny_draft(target, draft_vocab_size=draft_vocab_size, seed=seed, captures=captures)
    save_draft(path, draft.model, draft.target_ids, target=config, dtype=torch.float32)


@torch.inference_mode()
def lead(target: Decoder, ids: Sequence[int], params: SamplingParams) -> float:
    """By how much the best token after `ids` beats the second, as the uncut target scores them."""
    logits_1V = target.logits(target(torch.tensor(ids), DenseAttend(1, len(ids), device=CPU)).final_TD[-1:])
    sampling = sampling_rows([params], [params.seed or 0], vocab_size=target.config.vocab_size, device=CPU)
    if sampling is not None:
        tokens_V = torch.arange(target.config.vocab_size)
        noise_1V = gumbel_noise(sampling.seeds_R, torch.tensor([len(ids)]), tokens_V)
        logits_1V = filtered_scores(logits_1V, sampling) + noise_1V
    best, second = logits_1V[0].topk(2).values.tolist()
    return best - second


def leads_at_differences(
    alone: LLM,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    wanted: Sequence[Completion],
    found: Sequence[Completion],
) -> list[float]:
    """The lead of the uncut target's token at the first place where an answer differs; [] if all are equal."""
    leads = []
    for prompt, each, one, other in zip(prompts, params, wanted, found, strict=True):
        if one.token_ids == other.token_ids:
            continue
        pairs = enumerate(zip(one.token_ids, other.token_ids, strict=False))
        place = next((place for place, (a, b) in pairs if a != b), None)
        assert place is not None, f"one answer is the other's beginning: {one.token_ids} {other.token_ids}"
        leads.append(lead(alone.worker.target, [*prompt, *one.token_ids[:place]], each))
    return leads
