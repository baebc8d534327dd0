"""Extend and draft in static shapes, as a CUDA graph needs them; drafter.py does the same for any shape.

Every request has W rows for the positions that wait; the rows it does not need see nothing and write the scratch slot.

Shape letters: S requests, E pages of each, W waiting rows, F feature width, D draft hidden, k topk, P path length.
"""

from dataclasses import replace

import torch
from torch import Tensor

from slipstream.attention.interface import Attend
from slipstream.attention.sequence import NO_ADDRESS
from slipstream.attention.static import static_attend
from slipstream.draft.drafter import Drafter, Opening
from slipstream.kernels.keys import Keys


def static_extend(
    drafter: Drafter, keys: Keys, roots_S: Tensor, waiting_S: Tensor, tokens_SW: Tensor, features_SWF: Tensor
) -> Opening:
    """Run the draft over the first waiting_S rows of each request, which end just before its root.

    keys: of the draft, with pages and first; the rows' own addresses are filled in.
    """
    addresses_SW, last_S = _waiting_rows(roots_S, waiting_S, tokens_SW.shape[1], pdl=drafter.pool.pdl)
    attend, model = static_attend(drafter.pool, replace(keys, newest=addresses_SW)), drafter.draft.model
    hidden = model(tokens_SW.flatten(), model.fuse(features_SWF.flatten(0, 1)), attend)
    return Opening(*_taken(hidden.normed_TD, hidden.next_TD, last_S, pdl=drafter.pool.pdl))


def _taken(first_TD: Tensor, second_TD: Tensor, ids_S: Tensor, *, pdl: bool | None) -> tuple[Tensor, Tensor]:
    """The same rows of two tensors."""
    if pdl is not None:
        from slipstream.kernels.places import take_rows  # noqa: PLC0415 - needs triton

        return take_rows(first_TD, second_TD, ids_S, pdl=pdl)
    return first_TD.index_select(0, ids_S), second_TD.index_select(0, ids_S)


def _waiting_rows(roots_S: Tensor, waiting_S: Tensor, num_rows: int, *, pdl: bool | None) -> tuple[Tensor, Tensor]:
    """Addresses of the rows, NO_ADDRESS for spare ones, and which is each request's last."""
    if pdl is not None:
        from slipstream.kernels.places import waiting_rows  # noqa: PLC0415 - needs triton

        return waiting_rows(roots_S, waiting_S, num_rows, pdl=pdl)
    rows_W = torch.arange(num_rows, device=roots_S.device)
    addresses_SW = (roots_S - waiting_S + 1)[:, None] + rows_W  # the draft's entry of a position stands one further
    first_S = torch.arange(len(roots_S), device=roots_S.device) * num_rows
    return addresses_SW.masked_fill(rows_W >= waiting_S[:, None], NO_ADDRESS), first_S + waiting_S - 1


def step_attend(drafter: Drafter, keys: Keys, roots_S: Tensor, step: int) -> Attend:
    """The backend of a chain's draft step."""
    return static_attend(drafter.pool, replace(keys, newest=(roots_S + step)[:, None]))


def level_attend(
    drafter: Drafter, keys: Keys, roots_S: Tensor, level: int, addresses_Sk: Tensor, paths_SkP: Tensor
) -> Attend:
    """The backend of a tree's level."""
    newest_Sk = (roots_S + level)[:, None].expand_as(addresses_Sk).contiguous()
    rows = replace(keys, newest=newest_Sk, writes=addresses_Sk, committed=roots_S + 1, paths=paths_SkP.contiguous())
    return static_attend(drafter.pool, rows)
