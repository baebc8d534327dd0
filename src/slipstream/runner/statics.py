"""The tensors of one captured cycle: what it reads is loaded before each replay, what it leaves is read after.

Shape letters: S places, L entries of each, N rows of the chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from slipstream.attention.static import SCRATCH_SLOT
from slipstream.flow.batch import Batch, Row, bucket
from slipstream.kernels.reference import KEY_BLOCK
from slipstream.runner.inputs import Resident

SPARE = (0, 1, 1, 0, 0, 0)  # a place that nobody has: reads and writes the scratch page, accepts nothing
NUM_FIELDS = len(SPARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleShape:
    """What a capture depends on; the same on every rank, because it follows from the batch alone."""

    num_places: int
    num_keys: int
    steps: int

    @property
    def num_rows(self) -> int:
        """Rows a request, root included."""
        return self.steps + 1


def shape_of(batch: Batch) -> CycleShape:
    """The smallest captured shape that holds a batch: places and blocks of keys in powers of two."""
    steps = batch.speculation.steps
    num_keys = max(row.root_position for row in batch.rows) + steps + 1
    blocks = -(-num_keys // KEY_BLOCK)
    return CycleShape(num_places=bucket(len(batch.rows)), num_keys=bucket(blocks) * KEY_BLOCK, steps=steps)


@dataclass(slots=True)
class Statics:
    """Static tensors of one shape."""

    shape: CycleShape
    device: torch.device
    fields: Tensor = field(init=False)  # [NUM_FIELDS, S]
    slots_SL: Tensor = field(init=False)
    tokens_SN: Tensor = field(init=False)  # the chain that is verified
    outcome: Tensor = field(init=False)  # [S, 1 + N]: how many were emitted, then the tokens
    _owners: list[Resident] = field(default_factory=list)  # whose slots are loaded

    def __post_init__(self) -> None:
        shape, integers = self.shape, {"dtype": torch.int64, "device": self.device}
        self.fields = torch.zeros(NUM_FIELDS, shape.num_places, **integers)
        self.slots_SL = torch.full((shape.num_places, shape.num_keys), SCRATCH_SLOT, **integers)
        self.tokens_SN = torch.zeros(shape.num_places, shape.num_rows, **integers)
        self.outcome = torch.zeros(shape.num_places, 1 + shape.num_rows, **integers)

    def load(self, rows: Sequence[Row], residents: Sequence[Resident], waiting: Sequence[int]) -> None:
        """Take a batch; waiting: positions that the draft has not seen, 1 where there is no draft."""
        values = [
            (row.root_token, row.root_position, count, row.depth_limit, row.seed, 1)
            for row, count in zip(rows, waiting, strict=True)
        ]
        values += [SPARE] * (self.shape.num_places - len(values))
        self.fields.copy_(torch.tensor(list(zip(*values, strict=True))))
        if len(self._owners) != len(residents) or any(a is not b for a, b in zip(self._owners, residents, strict=True)):
            self._load_slots(residents)

    def _load_slots(self, residents: Sequence[Resident]) -> None:
        self.slots_SL.fill_(SCRATCH_SLOT)
        for place, resident in enumerate(residents):
            slots = resident.run.slots[: self.shape.num_keys]
            self.slots_SL[place, : len(slots)] = slots
        self._owners = list(residents)

    @property
    def roots_S(self) -> Tensor:
        """Root tokens."""
        return self.fields[0]

    @property
    def positions_S(self) -> Tensor:
        """Where the roots stand."""
        return self.fields[1]

    @property
    def waiting_S(self) -> Tensor:
        """How many positions wait for the draft; they end just before the root."""
        return self.fields[2]

    @property
    def limits_S(self) -> Tensor:
        """How many drafted tokens may be accepted."""
        return self.fields[3]

    @property
    def seeds_S(self) -> Tensor:
        """Of each request's noise."""
        return self.fields[4]

    @property
    def taken_S(self) -> Tensor:
        """1 where a place is taken, 0 where it is spare."""
        return self.fields[5]
