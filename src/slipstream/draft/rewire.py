"""Put a draft's first projection into the order in which its target's states arrive.

Shape letters: D draft hidden, E target hidden, F = captures * E.
"""

from collections.abc import Sequence

import torch

from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.weights.loader import place


def reorder_features(draft: Eagle3Draft, layers: Sequence[int]) -> None:
    """Let fc [D, F], which reads the states after `layers` in this order, read them ascending, as they are captured."""
    order = sorted(range(len(layers)), key=lambda index: layers[index])
    if order == list(range(len(layers))):
        return
    size, count = draft.config.target_hidden_size, len(draft.feature_norms)
    chunks = draft.fc.weight.data.split(size, dim=1)
    place(draft, "fc.weight", torch.cat([chunks[index] for index in order], dim=1).contiguous())
    norms = [dict(draft.named_parameters())[f"feature_norms.{index}.weight"].data for index in range(count)]
    if draft.config.fc_norm:
        for index, old in enumerate(order):
            place(draft, f"feature_norms.{index}.weight", norms[old])
    if draft.config.norm_before_fc:
        parts = norms[0].split(size)
        place(draft, "feature_norms.0.weight", torch.cat([parts[index] for index in order]))
