"""Start an engine: bring the ranks up, load, place the draft, share out the memory; in this order."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from slipstream.config.draft import CaptureConvention
from slipstream.config.engine import EngineConfig
from slipstream.config.placement import LEADER_ALONE, REPLICATED, Placement, placement
from slipstream.config.speculation import Speculation
from slipstream.draft.checkpoint import read_draft_config
from slipstream.engine.engine import Engine
from slipstream.engine.executor import Ranks
from slipstream.engine.placement import Choice, choose_placement
from slipstream.flow.orders import LoadTarget, MakePools, PlaceDraft, SetDelay
from slipstream.parallel.cut import check_heads
from slipstream.serve.budget import Budget, balance_warning, count_entries
from slipstream.telemetry.clock import Clock

AUTO: Literal["auto"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an engine is to be, settled."""

    target: LoadTarget
    draft: PlaceDraft  # its placement is overridden by draft_tp
    draft_tp: str  # auto, replicated or a number
    config: EngineConfig  # without the size of the pools
    budget: Budget
    strict_memory_balance: bool = False
    delay_us: float = 0.0  # of every collective
    on_trial: Callable[[Placement], None] = lambda placement: None  # told of each placement that `auto` times


@dataclass(slots=True, kw_only=True)
class Started:
    """A running engine and how it came to be."""

    engine: Engine
    executor: Ranks
    wanted: Wanted
    draft: PlaceDraft
    choice: Choice | None  # of `auto`
    warning: str | None  # about memory


def check_before_loading(wanted: Wanted, tp: int) -> None:
    """Refuse what the configs alone show to be impossible, before any rank is started.

    Raises:
        ValueError: heads that cannot be cut over tp, or a draft whose config does not fit.
    """
    config = wanted.target.config
    check_heads("the target", num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, size=tp)
    check_draft(wanted.draft, wanted.target, wanted.draft_tp, tp)


def check_draft(draft: PlaceDraft, target: LoadTarget, draft_tp: str, tp: int) -> None:
    """The same for a draft.

    Raises:
        ValueError: a damaged config, another target's, or heads that cannot be cut as asked.
    """
    if draft.path is None:
        return
    convention = CaptureConvention(draft.convention)
    body = read_draft_config(Path(draft.path), target=target.config, convention=convention, wiring=draft.wiring).body
    if draft_tp != AUTO:
        size = placement(draft_tp, tp).ranks
        check_heads("the draft", num_heads=body.num_heads, num_kv_heads=body.num_kv_heads, size=size)


def at_random(wanted: Wanted) -> Wanted:
    """The same with random weights in the shapes of the target's and the draft's configs, whose files are not read."""
    target = wanted.target
    return replace(wanted, target=replace(target, path=None), draft=_drawn(wanted.draft, target))


def _drawn(draft: PlaceDraft, target: LoadTarget) -> PlaceDraft:
    """A draft whose weights are drawn; its path tells its shape."""
    if draft.path is None:
        return replace(draft, dummy=None)
    convention = CaptureConvention(draft.convention)
    shape = read_draft_config(Path(draft.path), target=target.config, convention=convention, wiring=draft.wiring)
    return replace(draft, dummy=shape)


def set_delay(executor: Ranks, microseconds: float) -> None:
    """Delay every collective from now on."""
    executor.order(SetDelay(microseconds=microseconds))


def reconfigured(
    started: Started, shape: Speculation, path: Path | None, draft_tp: str | int | None, *, tp: int
) -> Started:
    """Another draft, placement or shape of cycle, as far as they differ from what is.

    Raises:
        ValueError: one of them cannot be; everything is as before.
    """
    config = replace(started.engine.config, speculation=shape)
    if draft_tp is not None or (None if path is None else str(path)) != started.draft.path:
        return _replace_draft(started, config, path, None if draft_tp is None else str(draft_tp), tp=tp)
    if shape.num_tail_entries > started.engine.config.speculation.num_tail_entries:
        return _grow_pools(started, config)
    if shape != started.engine.speculation:
        started.engine.reconfigure(shape)
    return started


def _replace_draft(
    started: Started, config: EngineConfig, path: Path | None, draft_tp: str | None, *, tp: int
) -> Started:
    """Put another draft, or the same one elsewhere, beside the resident target."""
    executor, wanted, before = started.executor, started.wanted, started.draft
    draft_tp = draft_tp or (str(before.placement.ranks) if not before.placement.replicated else REPLICATED)
    draft = replace(before, path=None if path is None else str(path))
    if wanted.target.path is None:
        check_draft(draft, wanted.target, AUTO, tp)
        draft = _drawn(draft, wanted.target)
    if draft.wanted is False and draft_tp != AUTO:
        raise ValueError("there is no draft to place; pass draft=...")
    if draft_tp != AUTO:
        placement(draft_tp, tp)
    check_draft(draft, wanted.target, draft_tp, tp)
    try:
        draft, choice = place(executor, draft, replace(wanted, config=config), draft_tp=draft_tp, tp=tp)
        engine = _checked_engine(executor, config, wanted.budget)
    except ValueError:
        executor.order(before)
        executor.order(MakePools(config=started.engine.config))
        raise
    return replace(started, engine=engine, draft=draft, choice=choice)


def _grow_pools(started: Started, config: EngineConfig) -> Started:
    """A longer cycle writes further beyond the text than the pools were made for."""
    executor = started.executor
    executor.check(config.speculation)
    try:
        engine = _checked_engine(executor, config, started.wanted.budget)
    except ValueError:
        executor.order(MakePools(config=started.engine.config))
        raise
    return replace(started, engine=engine)


def _checked_engine(executor: Ranks, config: EngineConfig, budget: Budget) -> Engine:
    engine = make_engine(executor, config, budget)
    executor.check(config.speculation)  # an engine without a draft would decode plainly
    return engine


def start(wanted: Wanted, executor: Ranks, *, tp: int) -> Started:
    """Load and place everything; on an error the group is closed.

    Raises:
        ValueError: something does not fit; one sentence.
    """
    try:
        executor.order(wanted.target)
        if wanted.delay_us:
            set_delay(executor, wanted.delay_us)
        warning = balance_warning(executor.shares())
        if warning is not None and wanted.strict_memory_balance:
            raise ValueError(f"{warning}; or leave --strict-memory-balance out")
        draft, choice = place(executor, wanted.draft, wanted, draft_tp=wanted.draft_tp, tp=tp)
        engine = make_engine(executor, wanted.config, wanted.budget)
    except BaseException:
        executor.close()
        raise
    return Started(engine=engine, executor=executor, wanted=wanted, draft=draft, choice=choice, warning=warning)


def place(
    executor: Ranks, draft: PlaceDraft, wanted: Wanted, *, draft_tp: str, tp: int
) -> tuple[PlaceDraft, Choice | None]:
    """Put the draft where it was asked for, or where it is fastest; what stands then.

    Raises:
        ValueError: an impossible placement, or a draft that cannot be loaded; the earlier one stays.
    """
    choice = None
    if not draft.wanted or (draft_tp == AUTO and tp == 1):
        draft = replace(draft, placement=LEADER_ALONE)
    elif draft_tp != AUTO:
        draft = replace(draft, placement=placement(draft_tp, tp))
    else:
        vocab_size = wanted.target.config.vocab_size
        choice = choose_placement(
            executor,
            draft,
            wanted.config,
            vocab_size=vocab_size,
            clock=Clock(),
            tp=tp,
            on_trial=wanted.on_trial,
        )
        draft = replace(draft, placement=choice.placement)
    executor.order(draft)
    return draft, choice


def make_engine(executor: Ranks, config: EngineConfig, budget: Budget) -> Engine:
    """Size the pools by what the models left, and make the engine.

    Raises:
        ValueError: too little memory.
    """
    pinned = config.max_pinned_pages * config.page_size
    tail = config.speculation.num_tail_entries + 1 + config.page_size + pinned
    longest = config.max_len + tail
    entries = count_entries(
        budget,
        executor.shares(),
        wanted=config.max_batch * (longest - pinned) + pinned,
        longest=longest,
        tail=tail,
        least=2 * config.page_size + pinned,
    )
    config = replace(config, num_pages=entries // config.page_size + 1)
    executor.order(MakePools(config=config))
    return Engine(config, executor, clock=Clock())
