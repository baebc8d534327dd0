"""Extend and draft a chain in static shapes, as a CUDA graph needs them; drafter.py does the same for any shape.

Every request has W rows for the positions that wait; the rows it does not need repeat its last one and write the
scratch slot.

Shape letters: S requests, L entries of each, W waiting rows, F feature width, D draft hidden.
"""

import torch
from torch import Tensor

from slipstream.attention.static import SCRATCH_SLOT, StaticAttend, rows_from
from slipstream.draft.drafter import Drafter, Opening


def static_extend(
    drafter: Drafter, slots_SL: Tensor, roots_S: Tensor, waiting_S: Tensor, tokens_SW: Tensor, features_SWF: Tensor
) -> Opening:
    """Run the draft over the first waiting_S rows of each request, which end just before its root."""
    rows_W = torch.arange(tokens_SW.shape[1], device=roots_S.device)
    addresses_SW = (roots_S - waiting_S + 1)[:, None] + rows_W  # the draft's entry of a position stands one further
    spare_SW = rows_W >= waiting_S[:, None]
    addresses_SW = addresses_SW.minimum(roots_S[:, None])
    writes_SW = slots_SL.gather(1, addresses_SW).masked_fill(spare_SW, SCRATCH_SLOT)
    attend = StaticAttend(drafter.pool, slots_SL, addresses_SW, writes_SW, first=1)
    model = drafter.draft.model
    hidden = model(tokens_SW.flatten(), model.fuse(features_SWF.flatten(0, 1)), attend)
    first_S = torch.arange(len(roots_S), device=roots_S.device) * len(rows_W)
    last_S = first_S + waiting_S - 1
    return Opening(hidden.normed_TD[last_S], hidden.next_TD[last_S])


def static_chain(
    drafter: Drafter, slots_SL: Tensor, opening: Opening, tokens_S: Tensor, roots_S: Tensor, *, steps: int
) -> Tensor:
    """Roots and drafted tokens [S, steps + 1], greedily."""
    columns, hidden_SD = [tokens_S, drafter.best(opening.normed_SD, None, roots_S + 1)], opening.next_SD
    for step in range(1, steps):
        attend = rows_from(drafter.pool, slots_SL, (roots_S + step)[:, None], first=1)
        hidden = drafter.draft.model(columns[-1], hidden_SD, attend)
        hidden_SD = hidden.next_TD
        columns.append(drafter.best(hidden.normed_TD, None, roots_S + step + 1))
    return torch.stack(columns, dim=1)
