"""The target's features at the last position of every page: what a prefix hit gives the draft (decision 12).

Shape letters: P pages, F feature width, S requests, D depth + 1.
"""

import torch
from torch import Tensor

from slipstream.attention.pool import SlotRun
from slipstream.attention.static import SCRATCH_SLOT
from slipstream.kernels.keys import Keys


class PageFeatures:
    """One feature a page, beside the pages' entries; right for every page whose last position is committed."""

    def __init__(self, *, num_pages: int, page_size: int, feature_size: int, like: Tensor) -> None:
        self.page_size = page_size
        self.features_PF = torch.zeros(num_pages, feature_size, dtype=like.dtype, device=like.device)

    def of(self, page: int) -> Tensor:
        """Of one page: [1, F]."""
        return self.features_PF[page : page + 1]

    def keep(self, run: SlotRun, start: int, features_TF: Tensor) -> None:
        """Leave those of pages that end among a request's positions from `start` on."""
        first, stop = start + (-start - 1) % self.page_size, start + features_TF.shape[0]
        if first < stop:
            ends = torch.arange(first, stop, self.page_size, device=features_TF.device)
            self.features_PF[run.slots[ends] // self.page_size] = features_TF[ends - start]

    def keep_rows(self, keys: Keys, roots_S: Tensor, features_SDF: Tensor, *, pdl: bool | None) -> None:
        """The same for all rows of a batch's paths, accepted or not, without a look at the device.

        keys: whose pages the rows' positions root + d are on. A row that is not accepted stands where a later cycle's
        row will: its feature is written over before the position is committed. Rows that end no page write the scratch
        page's, or nothing.
        """
        if pdl is not None:
            from slipstream.kernels.places import keep_page_ends  # noqa: PLC0415 - needs triton

            features_SDF, page = features_SDF.contiguous(), self.page_size
            keep_page_ends(features_SDF, roots_S, keys.pages, self.features_PF, page=page, pdl=pdl)
            return
        positions_SD = roots_S[:, None] + torch.arange(features_SDF.shape[1], device=roots_S.device)
        inside_SD = positions_SD % self.page_size != self.page_size - 1
        pages_SD = keys.slots_at(positions_SD).masked_fill(inside_SD, SCRATCH_SLOT) // self.page_size
        self.features_PF.index_copy_(0, pages_SD.flatten(), features_SDF.flatten(0, 1))
