"""The training loop: batch, loss, step; measured on held-out answers and saved as it goes.

Shape letters: V draft vocabulary.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.models.decoder import Decoder
from slipstream.train.accept import Measured, measure
from slipstream.train.batches import TrainBatch, epoch_plan, load_batch
from slipstream.train.conversations import Conversations
from slipstream.train.journal import Journal
from slipstream.train.loss import ChunkGradient, chunk_gradient
from slipstream.train.objective import Scores, score
from slipstream.train.options import LoopOptions, LossOptions
from slipstream.train.rate import MINUTE, Progress, done, learning_rate
from slipstream.train.state import read_state, restore, save_state
from slipstream.train.teacher import DraftVocabulary

BETAS = (0.9, 0.95)
MOST_SKIPPED = 50  # steps in a row without a finite gradient


@dataclass(slots=True, kw_only=True)
class Trainer:
    """A draft, what it learns from, and how."""

    draft: Eagle3Draft
    target: Decoder
    vocabulary: DraftVocabulary
    conversations: Conversations
    loss: LossOptions
    loop: LoopOptions
    journal: Journal
    state_path: Path | None = None
    held_out: Mapping[str, Conversations] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    optimizer: torch.optim.Optimizer = field(init=False)
    gradient: ChunkGradient = chunk_gradient
    skipped_in_a_row: int = 0

    def __post_init__(self) -> None:
        """Set up the optimizer; the target captures what the draft reads."""
        self.target.capture(self.draft.config.captures)
        self.optimizer = torch.optim.AdamW(
            [parameter for parameter in self.draft.parameters() if parameter.requires_grad],
            lr=self.loop.lr,
            betas=BETAS,
            weight_decay=0.0,
            fused=self.device.type == "cuda",
        )
        if self.loop.compile:
            self.gradient = torch.compile(chunk_gradient, dynamic=True)

    @property
    def device(self) -> torch.device:
        """Where everything runs."""
        return self.vocabulary.ids_V.device

    def resume(self) -> None:
        """Continue from the checkpoint at state_path."""
        assert self.state_path is not None, "a trainer without a state path cannot resume"
        self.progress = restore(read_state(self.state_path), self.draft, self.optimizer)

    def run(self, *, until_step: int | None = None) -> dict[str, Measured]:
        """Train to the end of the budget (or to a step), then measure and save.

        Raises:
            ValueError: no token is supervised, or gradients stay infinite.
        """
        watch = _Watch(self.progress.seconds)
        measure_at, save_at = _every(self.loop.measure_every_minutes), _every(self.loop.save_every_minutes)
        self.draft.train()
        plan = self._plan()
        while done(self.progress, self.loop, len(plan)) < 1 and self.progress.step != until_step:
            if self.progress.batch >= len(plan):
                self.progress.epoch, self.progress.batch = self.progress.epoch + 1, 0
                plan = self._plan()
                continue
            batch = load_batch(self.conversations, plan[self.progress.batch], device=self.device)
            lr = learning_rate(done(self.progress, self.loop, len(plan)), self.loop)
            scores = self.step(batch, lr)
            self.progress.seconds = watch.seconds()
            if self.progress.step % self.loop.log_every == 0 or self.progress.step == 1:
                self.journal.step(scores, self.progress, lr=lr, tokens_per_second=watch.rate(self.progress.tokens))
            if measure_at(self.progress.seconds):
                watch.pause(self.measure)
            if save_at(self.progress.seconds):
                watch.pause(self.save)
        self.save()
        return self.measure()

    def step(self, batch: TrainBatch, lr: float) -> Scores:
        """One optimizer step; skipped where the gradient is not finite."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        scores = score(self.draft, self.target, batch, self.vocabulary, self.loss, gradient=self.gradient)
        scores.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._learning(), self.loop.clip)
        finite = bool(torch.isfinite(norm))
        if finite:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._count(batch, finite=finite)
        return scores

    def measure(self) -> dict[str, Measured]:
        """Walk every held-out set."""
        found = {}
        self.draft.eval()
        for name, conversations in self.held_out.items():
            found[name] = measure(
                self.draft,
                self.target,
                conversations,
                self.vocabulary,
                steps=self.loop.measure_steps,
                batch_tokens=self.loop.batch_tokens,
            )
            self.journal.measured(name, found[name], self.progress)
        self.draft.train()
        return found

    def save(self) -> None:
        """Write the checkpoint, if there is a place for it."""
        if self.state_path is not None:
            save_state(self.state_path, self.draft, self.optimizer, self.progress, self.vocabulary.ids_V)

    def _plan(self) -> list[NDArray[np.int64]]:
        return epoch_plan(
            self.conversations.lengths_C,
            batch_tokens=self.loop.batch_tokens,
            seed=self.loop.seed,
            epoch=self.progress.epoch,
        )

    def _learning(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.draft.parameters() if parameter.requires_grad]

    def _count(self, batch: TrainBatch, *, finite: bool) -> None:
        progress = self.progress
        progress.step, progress.batch = progress.step + 1, progress.batch + 1
        progress.tokens += batch.num_tokens
        progress.answer_tokens += batch.num_answer_tokens
        progress.skipped += not finite
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1
        if self.skipped_in_a_row >= MOST_SKIPPED:
            raise ValueError(f"{MOST_SKIPPED} steps in a row gave no finite gradient; lower --lr or --clip")


class _Watch:
    """Seconds spent training; pauses do not count."""

    def __init__(self, already: float) -> None:
        self._begin = time.perf_counter() - already
        self._last: tuple[float, int] | None = None

    def seconds(self) -> float:
        return time.perf_counter() - self._begin

    def pause(self, work: Callable[[], object]) -> None:
        start = time.perf_counter()
        work()
        self._begin += time.perf_counter() - start

    def rate(self, tokens: int) -> float:
        """Tokens a second since the last call."""
        now = self.seconds()
        before, self._last = self._last, (now, tokens)
        return tokens / now if before is None else (tokens - before[1]) / max(1e-9, now - before[0])


def _every(minutes: float) -> Callable[[float], bool]:
    """Say yes once in so many minutes of training."""
    due = [0.0]

    def is_due(seconds: float) -> bool:
        if not due[0]:
            due[0] = seconds + minutes * MINUTE
            return False
        if seconds < due[0]:
            return False
        due[0] = seconds + minutes * MINUTE
        return True

    return is_due
