"""A captured cycle that was launched: who is in it, and when what it left can be read.

A cycle's outcome lands in pinned memory, so the next cycle may run before it is read.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.flow.batch import Batch
from slipstream.runner.inputs import Resident
from slipstream.runner.statics import CycleShape, Statics

POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class Flight:
    """A cycle that is on its way, or has ended."""

    shape: CycleShape
    statics: Statics
    residents: tuple[Resident, ...]  # by place
    limits: Mapping[int, int]  # by id of a resident: how deep its last cycle might accept, so this one does not deeper
    place: Tensor
    landed: torch.cuda.Event | None

    def outcome(self) -> list[list[int]]:
        """Of each place: how many it emitted, the tokens, the depths of the rows that were verified."""
        if self.landed is not None:
            self.landed.synchronize()  # sync: the host trims the runs and schedules the cycle after the next
        return self.place.tolist()  # sync: none, it lies on the host

    def wait(self, most_s: float) -> None:
        """Wait until it has landed, but no longer than so many seconds: a rank that it waits for may be dead."""
        latest = time.monotonic() + most_s
        with suppress(RuntimeError):  # a device that failed writes nothing any more
            while self.landed is not None and not self.landed.query() and time.monotonic() < latest:
                time.sleep(POLL_S)

    def serves(self, batch: Batch, residents: Sequence[Resident]) -> bool:
        """Whether this cycle, launched ahead, is what a batch asks for: no newcomer, and no deeper or other draft."""
        wanted, mine = batch.speculation, self.shape.speculation
        alike = wanted == mine or (wanted.is_chain and mine.is_chain and 0 < wanted.steps <= mine.steps)
        return alike and all(
            row.depth_limit == min(self.limits.get(id(each), -1), max(row.room - 1, 0))
            for row, each in zip(batch.rows, residents, strict=True)
        )


def limits_of(batch: Batch, residents: Sequence[Resident]) -> dict[int, int]:
    """How deep each request may accept."""
    return {id(each): row.depth_limit for row, each in zip(batch.rows, residents, strict=True)}
