"""Where the host finds what a captured cycle left.

Shape letters: S places, C columns of an outcome.
"""

import torch
from torch import Tensor


class Landing:
    """Two places in the host's memory that a shape's outcomes land in by turns: one is read while the next one lands.

    On a GPU kernels write there themselves, at the turn that stands in their fields; else `send` copies.
    """

    def __init__(self, like_SC: Tensor, *, direct: bool) -> None:
        """like_SC: an outcome on the device. direct: kernels write."""
        self._left_SC, self._direct, self._turn = like_SC, direct, 0
        self.places_2SC = torch.zeros(2, *like_SC.shape, dtype=like_SC.dtype, pin_memory=like_SC.is_cuda)

    @property
    def next_turn(self) -> int:
        """Where the outcome of the cycle that is launched next lands."""
        return 1 - self._turn

    def send(self) -> tuple[Tensor, torch.cuda.Event | None]:
        """The place of the cycle that was launched, and when it is there."""
        self._turn = self.next_turn
        return self.send_again()

    def send_again(self) -> tuple[Tensor, torch.cuda.Event | None]:
        """The same place: a cycle was run once more."""
        place_SC = self.places_2SC[self._turn]
        if not self._direct:
            place_SC.copy_(self._left_SC, non_blocking=True)
        if not self._left_SC.is_cuda:
            return place_SC, None
        landed = torch.cuda.Event()
        landed.record()
        return place_SC, landed
