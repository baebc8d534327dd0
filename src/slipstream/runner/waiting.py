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
        self.counts: list[int] = []
        self._guests: list[Resident] = []

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
        for place, (resident, count) in enumerate(zip(self._guests, self.counts, strict=True)):
            if count:
                resident.pending = Pending(
                    start=resident.expects[1] - count,
                    tokens=self.tokens_SW[place, :count].clone(),
                    features=self.features_SWF[place, :count].clone(),
                )
        self._guests, self.counts = [], []

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
