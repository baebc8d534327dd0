"""How far a run is, and the learning rate that goes with it."""

import math
from dataclasses import dataclass

from slipstream.train.options import LoopOptions

MINUTE = 60.0


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where a run stands; saved with its checkpoints."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # next batch of the epoch
    seconds: float = 0.0  # spent training, over all sittings
    tokens: int = 0
    answer_tokens: int = 0
    skipped: int = 0  # steps whose gradient was not finite


def done(progress: Progress, options: LoopOptions, batches: int) -> float:
    """Share of the run behind us, 0..1; `batches`: batches of an epoch."""
    if options.minutes is not None:
        return progress.seconds / (options.minutes * MINUTE)
    if options.steps is not None:
        return progress.step / options.steps
    assert options.epochs is not None, "LoopOptions checks that one budget is given"
    return (progress.epoch + progress.batch / max(1, batches)) / options.epochs


def learning_rate(share: float, options: LoopOptions) -> float:
    """Linear warm-up, then a cosine down to final_lr of the peak."""
    if share < options.warmup:
        return options.lr * max(share / options.warmup, 0.01)
    along = min(1.0, (share - options.warmup) / (1 - options.warmup))
    low = options.final_lr * options.lr
    return low + (options.lr - low) * 0.5 * (1 + math.cos(math.pi * along))
