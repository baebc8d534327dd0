"""A whole engine around a random tiny target and a random tiny draft."""

from collections.abc import Callable
from dataclasses import replace

import torch

from slipstream.config.draft import DraftConfig, default_captures
from slipstream.config.engine import EngineConfig
from slipstream.config.model import ModelConfig, RopeConfig
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation
from slipstream.draft.checkpoint import LoadedDraft
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.output import Answer
from slipstream.flow.request import Request
from slipstream.layers.linear import pack_linears
from slipstream.models.decoder import Decoder
from slipstream.models.registry import dummy_target
from slipstream.parallel.group import SoloGroup
from slipstream.runner.worker import Worker, no_grammars
from slipstream.telemetry.clock import Clock
from slipstream.text.grammar import Grammars

CPU = torch.device("cpu")

TINY = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden_size=64,
    intermediate_size=96,
    num_layers=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=120,
    rms_norm_eps=1e-5,
    rope=RopeConfig(),
    max_position=512,
)

MINUTE = replace(TINY, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=2, num_kv_heads=1, vocab_size=60)


class NoStops:
    """A matcher without stop strings."""

    def push(self, token_id: int) -> bool:
        return False


class StopAfter:
    """A matcher whose stop string is completed by the n-th token."""

    def __init__(self, count: int) -> None:
        self.left = count

    def push(self, token_id: int) -> bool:
        self.left -= 1
        return self.left == 0


def tiny_target(config: ModelConfig = TINY, *, seed: int = 0, scale: float = 3.0) -> Decoder:
    target = dummy_target(config, device=CPU, dtype=torch.float32, max_position=config.max_position, seed=seed)
    for name, parameter in target.named_parameters():
        if "norm" not in name:
            parameter.data *= scale
    return target


def tiny_draft(
    target: Decoder,
    *,
    draft_vocab_size: int = 80,
    seed: int = 1,
    num_layers: int = 1,
    captures: tuple[int, ...] | None = None,
) -> LoadedDraft:
    """A draft that agrees with the target now and then: its head is the target's, its layer small."""
    config = DraftConfig(
        body=replace(target.config, num_layers=num_layers, tie_embeddings=False),
        target_hidden_size=target.config.hidden_size,
        draft_vocab_size=draft_vocab_size,
        captures=captures or default_captures(target.config.num_layers),
    )
    model = Eagle3Draft(config, group=SoloGroup(), max_position=target.config.max_position)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.05
    ids = torch.randperm(target.config.vocab_size, generator=generator)[:draft_vocab_size].sort().values
    size = target.config.hidden_size
    model.fc.weight.data[:, -size:] += torch.eye(size)
    model.embed.weight.data = target.embed.weight.data
    model.head.weight.data = target.head.weight.data[ids].clone()
    return LoadedDraft(model=model.eval(), target_ids=ids, shares_embedding=True, convention="auto")


def tiny_engine(
    speculation: Speculation,
    *,
    target: Decoder | None = None,
    draft: LoadedDraft | None = None,
    max_batch: int = 8,
    max_len: int = 512,
    prefill_chunk: int = 512,
    feature_ring: int = 32,
    num_pages: int = 400,
    page_size: int = 16,
    draft_max_len: int | None = None,
    prefix_cache: bool = True,
    clock: Clock | None = None,
    open_grammars: Callable[[], Grammars] | None = None,
) -> Engine:
    target = target or tiny_target()
    draft = draft or tiny_draft(target)
    if target.head.packed is None:
        pack_linears(target)
        pack_linears(draft.model)
    target.capture(draft.model.config.captures)
    config = EngineConfig(
        speculation=speculation,
        max_len=max_len,
        max_batch=max_batch,
        num_pages=num_pages,
        page_size=page_size,
        prefill_chunk=prefill_chunk,
        prefix_cache=prefix_cache,
        draft_max_len=draft_max_len,
        feature_ring=feature_ring,
    )
    worker = Worker(config, target, draft, open_grammars=open_grammars or no_grammars)
    return Engine(config, worker, clock=clock or Clock())


def run_all(
    engine: Engine, prompts: list[list[int]], params: SamplingParams, *, stop_ids: frozenset[int] = frozenset()
) -> list[Answer]:
    """Answer prompts together; request i has seed params.seed + i."""
    for index, prompt in enumerate(prompts):
        request = Request(id=index, prompt=tuple(prompt), params=params, seed=(params.seed or 0) + index)
        engine.add(request, Ending(stop_ids=stop_ids, matcher=NoStops()))
    answers: dict[int, Answer] = {}
    while engine.busy:
        answers |= {news.request: news.answer for news in engine.step() if news.answer is not None}
    return [answers[index] for index in range(len(prompts))]


def some_prompts(count: int, *, vocab_size: int = 120, seed: int = 3, longest: int = 60) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]
