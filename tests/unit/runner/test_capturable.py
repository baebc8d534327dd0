"""What a GPU captures neither reads a number back nor brings one from the host."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import speculation
from slipstream.runner.segment import Segment
from tests.tiny_engine import run_all, some_prompts, tiny_engine
from tests.unit.runner.test_graphs import static

FORBIDDEN = ("_local_scalar_dense", "lift_fresh", "nonzero", "is_nonzero", "masked_select", "unique")


class Watch(TorchDispatchMode):
    """Refuses operations that a capture refuses."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not any(name in str(func) for name in FORBIDDEN), f"{func} waits for the device or the host"
        indices = args[1] if "aten.index" in str(func) and isinstance(args[1], list | tuple) else ()
        masks = [each for each in indices if each is not None and each.dtype == torch.bool]
        assert not masks, f"{func} with a mask waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("decreed", [None, 1.0])
def test_segments_hold_device_work_only(steps: int, decreed: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, seen = static(tiny_engine(speculation(steps))), []
    engine.executor.cycle.synthetic_accept_length = decreed

    def run(self: Segment, body: Callable[[], None], *, moves: Tensor | None = None) -> None:
        seen.append(body)
        with Watch():
            body()

    monkeypatch.setattr(Segment, "run", run)
    run_all(engine, some_prompts(3), SamplingParams(max_tokens=12))
    assert seen


def test_doing_a_segment_again_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture runs it some times before it counts, each time from where what it moves on stood."""
    params = SamplingParams(max_tokens=40)
    expected = [[each.tokens for each in run_all(static(tiny_engine(speculation(3))), some_prompts(3), params)]]
    expected += [[each.tokens for each in run_all(static(tiny_engine(speculation(0))), some_prompts(3), params)]]

    def run(self: Segment, body: Callable[[], None], *, moves: Tensor | None = None) -> None:
        kept = None if moves is None else moves.clone()
        for _ in range(4):
            if moves is not None:
                moves.copy_(kept)
            body()

    monkeypatch.setattr(Segment, "run", run)
    for steps, tokens in zip((3, 0), expected, strict=True):
        found = run_all(static(tiny_engine(speculation(steps))), some_prompts(3), params)
        assert [each.tokens for each in found] == tokens


def test_watch_notices_what_it_is_for() -> None:
    with Watch(), pytest.raises(AssertionError, match="waits for"):
        torch.tensor([1, 2])
    ones = torch.ones(2)
    with Watch(), pytest.raises(AssertionError, match="waits for"):
        ones[ones > 0]
