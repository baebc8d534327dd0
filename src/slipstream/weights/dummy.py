"""Small random weights where a checkpoint's would be: for tests, and for timing shapes."""

from collections.abc import Collection

import torch
from torch import nn

from slipstream.parallel.group import Group
from slipstream.weights.cut import COLUMNS, HEADS, ROWS
from slipstream.weights.loader import place

SCALE = 0.05
RANK_STRIDE = 1_000_003  # seeds of the ranks' own shares lie this far apart


def fill_dummy(
    module: nn.Module,
    *,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    group: Group | None = None,
    keep: Collection[str] = (),
) -> None:
    """Give every parameter (which may be on the meta device) normal values: norms near 1, all else near 0.

    A rank's shares get values of their own, whole parameters the same on every rank. keep: parameters that have values.
    """
    shared = torch.Generator(device).manual_seed(seed)
    own = shared
    if group is not None and group.size > 1:
        own = torch.Generator(device).manual_seed(seed + (group.rank + 1) * RANK_STRIDE)
    for name, parameter in list(module.named_parameters()):
        if name in keep:
            continue
        generator = own if name.endswith((*ROWS, *COLUMNS, *HEADS)) else shared
        value = torch.randn(parameter.shape, generator=generator, device=device) * SCALE
        if name.endswith("norm.weight"):
            value = value + 1
        place(module, name, value.to(dtype))
