"""One's own measurements: two or more times V(n), as typed or from a `slipstream profile` JSON, and a draft step.

V(1) says what a forward costs beside what was predicted, a second V(n) how steeply further rows cost:
V(n) = V(1) + growth x (predicted V(n) - predicted V(1)). The efficiencies stay those of the published fit.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.plan.cost import Free, Load, Own, Placed, bare_forward, draft_forward_ms
from slipstream.plan.drafts import Draft
from slipstream.plan.hardware import Machine
from slipstream.plan.models import Shape

LEAST_GROWTH = 0.02  # times that fall with more rows are noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was timed: the target's forward by rows of one request, and one draft forward."""

    verify_ms: tuple[tuple[int, float], ...]
    draft_step_ms: float | None = None


def growth_of(bare_1: float, bare_n: float, measured_1: float, measured_n: float) -> float:
    """How much more further rows cost than predicted."""
    if bare_n <= bare_1:
        return 1.0
    return max((measured_n - measured_1) / (bare_n - bare_1), LEAST_GROWTH)


def typed_points(text: str) -> Measured:
    """Read `1:10.9,4:16.5`.

    Raises:
        ValueError: something else.
    """
    try:
        pairs = [tuple(each.split(":")) for each in text.split(",")]
        found = tuple((int(tokens), float(ms)) for tokens, ms in pairs)
    except ValueError:
        raise ValueError(f"--calibrate-points is ROWS:MS pairs with commas, as 1:10.9,4:16.5, not {text}") from None
    return _checked(Measured(verify_ms=tuple(sorted(found))), "--calibrate-points")


def profile_points(path: Path) -> Measured:
    """Read "verify_curve" and "draft_step_ms" of a profile; other keys are left alone.

    Raises:
        ValueError: no such file, no JSON, or no curve in it.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise ValueError(f"there is no file {path}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    curve = raw.get("verify_curve") if isinstance(raw, dict) else None
    if not isinstance(curve, list) or not curve:
        raise ValueError(
            f'{path} holds no "verify_curve": [{{"tokens": 1, "ms": 4.25}}, ...]; write it with'
            f" `slipstream profile --json FILE`"
        )
    try:
        found = tuple(sorted((int(each["tokens"]), float(each["ms"])) for each in curve))
        draft = raw.get("draft_step_ms")
        draft_ms = None if draft is None else float(draft)
    except (KeyError, TypeError, ValueError):
        raise ValueError(f'{path}: an entry of "verify_curve" lacks "tokens" or "ms", or they are no numbers') from None
    return _checked(Measured(verify_ms=found, draft_step_ms=draft_ms), str(path))


def _checked(measured: Measured, where: str) -> Measured:
    tokens = [each for each, _ in measured.verify_ms]
    if 1 not in tokens:
        raise ValueError(f"{where} lacks V(1), the time of a forward of one row; all else is measured from it")
    bad = next((ms for n, ms in measured.verify_ms if not (ms > 0 and math.isfinite(ms) and n > 0)), None)
    if bad is not None or len(set(tokens)) < len(tokens):
        raise ValueError(f"{where}: rows are whole and each stands once, times are above zero")
    if measured.draft_step_ms is not None and not measured.draft_step_ms > 0:
        raise ValueError(f"{where}: draft_step_ms is above zero")
    return measured


def own_verify(measured: Measured, shape: Shape, machine: Machine, free: Free, *, context: int = 0) -> Own:
    """Offset and growth that fit measured times; with more than two, growth is their least-squares slope."""
    bare = {
        rows: bare_forward(shape, machine, Load(requests=1, rows=rows, context=context), free).ms
        for rows, _ in measured.verify_ms
    }
    times = dict(measured.verify_ms)
    others = [rows for rows in times if rows > 1]
    offset = times[1] - bare[1]
    if not others:
        return Own(offset_ms=offset)
    rises = [(bare[rows] - bare[1], times[rows] - times[1]) for rows in others]
    below = sum(predicted**2 for predicted, _ in rises)
    growth = sum(predicted * rise for predicted, rise in rises) / below if below > 0 else 1.0
    return Own(offset_ms=offset, growth=max(growth, LEAST_GROWTH))


def own_draft(measured: Measured, draft: Draft, machine: Machine, placed: Placed, free: Free) -> Free:
    """Free parameters whose draft forward takes as long as measured."""
    if measured.draft_step_ms is None:
        return free
    predicted, _ = draft_forward_ms(draft, machine, Load(requests=1, rows=1), placed, free)
    return replace(free, draft_us=max(free.draft_us + (measured.draft_step_ms - predicted) * 1e3, 1.0))


def worst_error(measured: Measured, shape: Shape, machine: Machine, free: Free, own: Own) -> float:
    """The largest relative distance between a measured time and the calibrated model."""
    from_model: Sequence[float] = [
        abs(_ms(shape, machine, rows, free, own) / ms - 1) for rows, ms in measured.verify_ms
    ]
    return max(from_model)


def _ms(shape: Shape, machine: Machine, rows: int, free: Free, own: Own) -> float:
    one = bare_forward(shape, machine, Load(requests=1, rows=1), free).ms
    now = bare_forward(shape, machine, Load(requests=1, rows=rows), free).ms
    return now + own.offset_ms + (own.growth - 1) * (now - one)
