"""Bring the models of a profile into memory: a checkpoint with its acceptance measured first, or random weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from slipstream.bench.profile import FIT_STEPS
from slipstream.bench.profile_acceptance import Accepted, measure_acceptance
from slipstream.bench.shapes import full_shape
from slipstream.cli.bench import chosen_prompts
from slipstream.cli.options import load, refuse_without_draft
from slipstream.cli.profile_options import RealPrompts, Subject, Timing
from slipstream.cli.ranks import show_trial
from slipstream.config.engine import EngineConfig
from slipstream.config.placement import LEADER_ALONE
from slipstream.config.speculation import Speculation
from slipstream.engine.executor import RankExecutor
from slipstream.engine.group import open_executor
from slipstream.flow.orders import LoadTarget, PlaceDraft
from slipstream.serve.budget import Budget
from slipstream.serve.settle import dtype_name, settle_device, settle_draft_tp, settle_dtype
from slipstream.serve.start import Wanted, check_before_loading, place
from slipstream.telemetry.progress import progress

RANDOM = "the weights are random, so no real acceptance was measured"
SKIPPED = "acceptance was not measured (--limit 0)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Models in memory, the draft in its place, and what real prompts got accepted."""

    executor: RankExecutor
    close: Callable[[], None]
    draft: PlaceDraft
    vocab_size: int
    dtype: torch.dtype
    accepted: Accepted | None
    unmeasured: str  # why there is no acceptance where there is none
    names: dict[str, Any]  # model, draft, weights, and of the prompts


def open_subject(subject: Subject, timing: Timing, real: RealPrompts, *, ranks: int) -> Opened:
    """Load whatever was asked for.

    Raises:
        ValueError: it cannot be loaded, or is too short for the context that is timed.
    """
    longest = timing.plan(_no_draft(), vocab_size=1, ranks=ranks).longest
    opener = _open_model if subject.shape is None else _open_shape
    return opener(subject, timing, real, ranks, longest)


def _open_model(subject: Subject, timing: Timing, real: RealPrompts, ranks: int, longest: int) -> Opened:
    """Real weights: acceptance first, since timing replaces the engine's pools."""
    model, shape = str(subject.model), timing.speculation()
    refuse_without_draft(model, subject.draft_name)
    entries = chosen_prompts(real.prompts, real.limit) if real.limit else []
    drafted = _deep(shape)
    llm = load(
        model,
        subject.draft_name,
        steps=drafted.steps,
        topk=drafted.topk,
        draft_tokens=drafted.draft_tokens,
        device=subject.device,
        dtype=subject.dtype,
        tp=ranks,
        draft_tp=subject.draft_tp,
        max_batch=max(timing.batch, 1),
    )
    try:
        _check_context(longest, llm.max_len)
        accepted = None
        if entries:
            with progress("Measuring acceptance", len(entries), unit="prompts") as meter:
                accepted = measure_acceptance(llm, entries, max_tokens=real.max_tokens, on_finish=meter.advance)
    except BaseException:
        llm.close()
        raise
    executor, draft = llm.started.executor, llm.started.draft
    assert isinstance(executor, RankExecutor), "only --executor ray has others, and it is not offered here"
    prompts = {"prompts": real.prompts.name if real.prompts else "built-in", "num_prompts": len(entries)}
    return Opened(
        executor=executor,
        close=llm.close,
        draft=draft,
        vocab_size=llm.model_config.vocab_size,
        dtype=llm.dtype,
        accepted=accepted,
        unmeasured=SKIPPED,
        names={
            "model": model,
            "draft": None if llm.draft_path is None else subject.draft or llm.draft_path.name,
            "weights": "checkpoint",
            **({**prompts, "max_tokens": real.max_tokens} if entries else _no_prompts()),
        },
    )


def _open_shape(subject: Subject, timing: Timing, real: RealPrompts, ranks: int, longest: int) -> Opened:
    """Random weights: a target, a draft where it was asked for, and no tokenizer."""
    if real.prompts is not None:
        raise ValueError(f"--prompts needs real weights, and --shape {subject.shape} is random; leave it out")
    full, device = full_shape(str(subject.shape)), settle_device(subject.device)
    dtype = settle_dtype(subject.dtype, device)
    _check_context(longest, full.target.max_position)
    number = dtype_name(dtype)
    wanted = Wanted(
        target=LoadTarget(config=full.target, path=None, dtype=number, max_position=longest),
        draft=PlaceDraft(path=None, placement=LEADER_ALONE, dtype=number, dummy=full.draft),
        draft_tp=settle_draft_tp(subject.draft_tp, ranks, has_draft=True),
        config=EngineConfig(speculation=timing.speculation(), max_len=longest),
        budget=Budget(memory_fraction=None, kv_gib=None),
        on_trial=show_trial,
    )
    check_before_loading(wanted, ranks)
    executor = open_executor(ranks, device)
    try:
        executor.order(wanted.target)
        draft, _ = place(executor, wanted.draft, wanted, draft_tp=wanted.draft_tp, tp=ranks)
    except BaseException:
        executor.close()
        raise
    return Opened(
        executor=executor,
        close=executor.close,
        draft=draft,
        vocab_size=full.target.vocab_size,
        dtype=dtype,
        accepted=None,
        unmeasured=RANDOM,
        names={"model": subject.shape, "draft": subject.shape, "weights": "dummy", **_no_prompts()},
    )


def _deep(shape: Speculation) -> Speculation:
    """A chain deep enough to read every shorter one's acceptance from; a tree as it is."""
    depth = max(shape.steps, FIT_STEPS[-1])
    return Speculation(steps=depth, topk=1, draft_tokens=depth) if shape.is_chain else shape


def _check_context(longest: int, most: int) -> None:
    if longest > most:
        raise ValueError(
            f"timing reaches {longest} tokens of context and the model serves {most}; lower --context or --cycles"
        )


def _no_draft() -> PlaceDraft:
    return PlaceDraft(path=None, placement=LEADER_ALONE, dtype="")


def _no_prompts() -> dict[str, Any]:
    return {"prompts": None, "num_prompts": 0, "max_tokens": None}
