"""Settle at the door whatever was left to `auto`: device, dtype, draft, shape, sizes.

Below this file every setting is concrete (decision 13).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from slipstream.config.draft import AS_DECLARED, CaptureConvention, DraftWiring
from slipstream.config.engine import PAGE_SIZE, EngineConfig
from slipstream.config.model import ModelConfig
from slipstream.config.placement import LEADER_ALONE, placement
from slipstream.config.speculation import Speculation, speculation
from slipstream.flow.orders import LoadTarget, PlaceDraft
from slipstream.parallel.roll import Limits
from slipstream.parallel.spot import launched_spot
from slipstream.weights.shipped import shipped_draft, short_name
from slipstream.weights.store import resolve_model

DEFAULT_STEPS = 4
MAX_DELAY_US = 1e6
MIN_WATCHDOG_S = 1.0
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where the models are."""

    model: Path
    draft: Path | None


def settle_paths(model: str, draft: str | None) -> Paths:
    """Find the target and its draft; draft "auto" is the shipped one, if this model has one.

    The paths are absolute: files are read again when the draft changes, on every rank, and this process may have gone
    to another folder by then.
    """
    model_path = resolve_model(model).absolute()
    if draft is None:
        return Paths(model=model_path, draft=None)
    if draft == "auto":
        return Paths(model=model_path, draft=shipped_draft(short_name(Path(model))))
    return Paths(model=model_path, draft=settle_draft_path(draft))


def settle_device(device: str) -> torch.device:
    """CUDA when there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        settled = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device {device!r} is unknown; use auto, cpu, cuda or cuda:N") from None
    if settled.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for but torch sees no CUDA device; use --device cpu")
    if settled.type == "cuda" and (settled.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device} was asked for but torch sees {torch.cuda.device_count()}; count them from 0")
    if settled.type not in ("cpu", "cuda"):
        raise ValueError(f"device {device!r} is not supported; use auto, cpu, cuda or cuda:N")
    return settled


def settle_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """fp32 on a CPU, bf16 on CUDA."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown; use auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def settle_speculation(
    steps: int | None, topk: int | None, draft_tokens: int | None, *, has_draft: bool
) -> Speculation:
    """The cycle's shape: a chain of 4 with a draft, plain decoding without.

    Raises:
        ValueError: the numbers contradict each other, or there is nothing to speculate with.
    """
    if not has_draft and any(value for value in (steps, draft_tokens)):
        raise ValueError("steps and draft_tokens need a draft, and there is none; pass --draft, or leave them out")
    if steps is None:
        steps = DEFAULT_STEPS if has_draft else 0
        if topk in (None, 1) and draft_tokens:
            steps = draft_tokens
    return speculation(steps, 1 if topk is None else topk, draft_tokens)


def settle_max_len(max_len: int | None, config: ModelConfig) -> int:
    """The context to serve: the model's own unless less was asked for."""
    if max_len is None:
        return config.max_position
    if max_len > config.max_position:
        raise ValueError(f"max_len {max_len} is beyond the model's context of {config.max_position} tokens")
    return max_len


def settle_engine(
    shape: Speculation,
    max_len: int,
    max_batch: int,
    synthetic_accept_length: float | None,
    prefix_cache: bool,
    draft_max_len: int | None,
    pinned_tokens: int,
    graph_sizes: Sequence[int] | None,
    device: torch.device,
) -> EngineConfig:
    """Everything but the size of the pools, which is known once the models are loaded (serve/budget.py).

    Raises:
        ValueError: numbers that no engine can run with.
    """
    if pinned_tokens < 0:
        raise ValueError(f"pinned_tokens is 0 or more, not {pinned_tokens}; leave it out to pin nothing")
    if graph_sizes is not None and device.type != "cuda":
        raise ValueError(f"graph_sizes says what is captured on CUDA, and the device is {device}; leave it out")
    return EngineConfig(
        speculation=shape,
        max_len=max_len,
        max_batch=max_batch,
        synthetic_accept_length=synthetic_accept_length,
        prefix_cache=prefix_cache,
        draft_max_len=draft_max_len,
        max_pinned_pages=-(-pinned_tokens // PAGE_SIZE),
        graph_sizes=None if graph_sizes is None else tuple(graph_sizes),
    )


def settle_target(path: Path, config: ModelConfig, dtype: torch.dtype, max_len: int) -> LoadTarget:
    """The target as it is to be loaded."""
    return LoadTarget(config=config, path=str(path), dtype=dtype_name(dtype), max_position=max_len)


def settle_draft(
    path: Path | None, dtype: str, target: torch.dtype, convention: str, wiring: DraftWiring
) -> PlaceDraft:
    """The draft as it is to be loaded; in the target's dtype unless another was asked for. Its place comes later.

    Raises:
        ValueError: an unknown dtype or convention, or a wiring without a draft.
    """
    if path is None and wiring != AS_DECLARED:
        raise ValueError("the draft's wiring was given and there is no draft; pass --draft, or leave the wiring out")
    own = target if dtype == "auto" else settle_dtype(dtype, torch.device("cpu"))
    return PlaceDraft(
        path=None if path is None else str(path),
        placement=LEADER_ALONE,
        dtype=dtype_name(own),
        convention=settle_convention(convention).value,
        wiring=wiring,
    )


def dtype_name(dtype: torch.dtype) -> str:
    """float32, bfloat16 or float16."""
    return str(dtype).removeprefix("torch.")


def settle_tp(tp: int | None) -> int:
    """How many ranks: as many as a launcher started, or as were asked for; one if nobody says.

    Raises:
        ValueError: the launcher and the option contradict each other.
    """
    spot = launched_spot()
    if spot is None:
        if tp is not None and tp < 1:
            raise ValueError(f"--tp must be 1 or more, not {tp}")
        return tp or 1
    if tp not in (None, spot.size):
        raise ValueError(f"--tp {tp} contradicts the launcher, which started {spot.size} ranks; leave --tp out")
    return spot.size


def settle_draft_tp(draft_tp: str, tp: int, *, has_draft: bool) -> str:
    """auto, or a placement that is possible beside a target of `tp` ranks.

    Raises:
        ValueError: it is not, or there is no draft to place.
    """
    if draft_tp == "auto":
        return draft_tp
    if not has_draft:
        raise ValueError(f"--draft-tp {draft_tp} places a draft, and there is none; pass --draft, or leave it out")
    placement(draft_tp, tp)
    return draft_tp


def settle_draft_path(draft: str) -> Path:
    """Where a draft is, whatever folder a rank is in."""
    return resolve_model(draft).absolute()


def settle_delay(microseconds: float, tp: int) -> float:
    """What every collective is delayed by.

    Raises:
        ValueError: negative, not a number, or there is nothing to delay.
    """
    if not 0 <= microseconds <= MAX_DELAY_US:
        raise ValueError(f"--inject-allreduce-us lies between 0 and {MAX_DELAY_US:.0f}, not {microseconds}")
    if microseconds and tp == 1:
        raise ValueError("--inject-allreduce-us delays collectives, and one rank has none; raise --tp or leave it out")
    return microseconds


def settle_limits(watchdog_s: float) -> Limits:
    """How long a rank may be silent.

    Raises:
        ValueError: too short to tell silence from work, or not a number.
    """
    if not MIN_WATCHDOG_S <= watchdog_s < float("inf"):
        raise ValueError(f"--watchdog-s must be {MIN_WATCHDOG_S:g} seconds or more, not {watchdog_s:g}")
    return Limits(limit_s=watchdog_s)


def settle_convention(name: str) -> CaptureConvention:
    """How explicit layer ids of a draft are read.

    Raises:
        ValueError: no such convention.
    """
    try:
        return CaptureConvention(name)
    except ValueError:
        choices = ", ".join(each.value for each in CaptureConvention)
        raise ValueError(f"capture convention {name!r} is unknown; use {choices}") from None


def changed(shape: Speculation, steps: int | None, topk: int | None, draft_tokens: int | None) -> Speculation:
    """A cycle's shape with some of its numbers replaced; draft tokens follow unless they are given.

    Raises:
        ValueError: the numbers contradict each other.
    """
    if steps is topk is draft_tokens is None:
        return shape
    steps = shape.steps if steps is None else steps
    if topk is None:
        topk = shape.topk if steps else 1
    return speculation(steps, topk, draft_tokens)
