"""Where the emitted positions of a batch wait for the draft's next extend: fixed memory that captured cycles share.

A request that leaves the batch, or meets a cycle that is not captured, takes its own along as `Pending`.

Shape letters: S places in the batch, W waiting rows, F feature width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.draft.drafter import Drafter, Pending
from slipstream.runner.inputs import Resident


class WaitingRoom:
    """Tokens and features of waiting positions, a place for each request of the batch; the last one ends at its root.

    The counts are the host's: it knows what each cycle emitted.
    """

    def __init__(self, *, num_places: int, num_rows: int, feature_size: int, like: Tensor) -> None:
        device = like.device
        self.tokens_SW = torch.zeros(num_places, num_rows, dtype=torch.int64, device=device)
        self.features_SWF = torch.zeros(num_places, num_rows, feature_size, dtype=like.dtype, device=device)
        self._read_SW, self._read_SWF = self.tokens_SW.clone(), self.features_SWF.clone()
        self.counts: list[int] = []
        self._guests: list[Resident] = []

    def read(self, num_places: int, num_rows: int) -> tuple[Tensor, Tensor]:
        """What waits in the first places, out of the way of what the same cycle leaves."""
        self._read_SW[:num_places, :num_rows] = self.tokens_SW[:num_places, :num_rows]
        self._read_SWF[:num_places, :num_rows] = self.features_SWF[:num_places, :num_rows]
        return self._read_SW[:num_places, :num_rows], self._read_SWF[:num_places, :num_rows]

    def keep(self, tokens_SD: Tensor, features_SDF: Tensor, waiting_S: Tensor | None) -> None:
        """Leave what a cycle emitted: all that waits after a draft; beside `waiting_S` that did after a plain step."""
        places, depth = tokens_SD.shape
        if waiting_S is None:
            self.tokens_SW[:places, :depth] = tokens_SD
            self.features_SWF[:places, :depth] = features_SDF
            return
        places_S = torch.arange(places, device=tokens_SD.device)
        self.tokens_SW[places_S, waiting_S] = tokens_SD[:, 0]
        self.features_SWF[places_S, waiting_S] = features_SDF[:, 0]

    def undo(self, num_places: int, num_rows: int) -> None:
        """Have what was read last wait again: the cycle that read it counts for nothing."""
        self.tokens_SW[:num_places, :num_rows] = self._read_SW[:num_places, :num_rows]
        self.features_SWF[:num_places, :num_rows] = self._read_SWF[:num_places, :num_rows]

    def seat(self, residents: Sequence[Resident]) -> None:
        """Give each request its place, in the order of the batch."""
        if len(self._guests) == len(residents) and all(a is b for a, b in zip(self._guests, residents, strict=True)):
            return
        self.vacate()
        for place, resident in enumerate(residents):
            pending, resident.pending = resident.pending, None
            count = 0 if pending is None else pending.tokens.shape[0]
            if pending is not None:
                self.tokens_SW[place, :count] = pending.tokens
                self.features_SWF[place, :count] = pending.features
            self.counts.append(count)
            self._guests.append(resident)

    def vacate(self) -> None:
        """Hand every request what waits for it."""
        for resident in self._guests:
            self.hand_back(resident)
        self._guests, self.counts = [], []

    def hand_back(self, resident: Resident, *, was_read: bool = False) -> None:
        """Hand one request, if it has a place, what waits for it. was_read: a cycle on its way has read it already."""
        place = next((at for at, guest in enumerate(self._guests) if guest is resident), None)
        if place is None or not self.counts[place]:
            return
        count = self.counts[place]
        tokens, features = (self._read_SW, self._read_SWF) if was_read else (self.tokens_SW, self.features_SWF)
        resident.pending = Pending(
            start=resident.expects[1] - count,
            tokens=tokens[place, :count].clone(),
            features=features[place, :count].clone(),
        )

    def longest(self, residents: Sequence[Resident]) -> int:
        """The most positions that wait for one of these requests, or for one that has a place here."""
        held = [0 if each.pending is None else each.pending.tokens.shape[0] for each in residents]
        return max(held + self.counts)


def shorten(drafter: Drafter, residents: Sequence[Resident], *, most: int) -> None:
    """Extend requests of which more than `most` positions wait over the oldest of them; none sits in the room."""
    for resident in residents:
        pending = resident.pending
        num_over = 0 if pending is None else pending.tokens.shape[0] - most
        if pending is None or num_over <= 0:
            continue
        oldest = Pending(start=pending.start, tokens=pending.tokens[:num_over], features=pending.features[:num_over])
        drafter.extend([oldest], [resident.run])
        resident.pending = Pending(
            start=oldest.stop, tokens=pending.tokens[num_over:], features=pending.features[num_over:]
        )
