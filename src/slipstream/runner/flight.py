"""A captured cycle that was launched: who is in it, and when what it left can be read.

The host copies a cycle's outcome into pinned memory behind it in the stream, so the next cycle may run before it is
read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from slipstream.flow.batch import Batch
from slipstream.runner.inputs import Resident
from slipstream.runner.statics import CycleShape, Statics


@dataclass(slots=True)
class Landing:
    """Pinned memory that a shape's outcomes land in, by turns: one may be read while the next one lands."""

    like: Tensor
    _places: list[Tensor] = field(init=False)
    _turn: int = 0

    def __post_init__(self) -> None:
        on_cuda = self.like.is_cuda
        self._places = [torch.empty(self.like.shape, dtype=self.like.dtype, pin_memory=on_cuda) for _ in range(2)]

    def send(self) -> tuple[Tensor, torch.cuda.Event | None]:
        """Queue a copy of what the stream's last cycle left."""
        self._turn = 1 - self._turn
        place = self._places[self._turn]
        place.copy_(self.like, non_blocking=True)
        if not self.like.is_cuda:
            return place, None
        landed = torch.cuda.Event()
        landed.record()
        return place, landed


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
