"""Save a training run so that it continues as if it had never stopped."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.train.rate import Progress

FILE = "state.pt"


def save_state(
    path: Path, draft: Eagle3Draft, optimizer: torch.optim.Optimizer, progress: Progress, ids_V: Tensor
) -> None:
    """Write everything a resumed run needs; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    torch.save(
        {
            "draft": trained(draft),
            "config": repr(draft.config),
            "optimizer": optimizer.state_dict(),
            "progress": asdict(progress),
            "target_ids": ids_V.cpu(),
            "rng": torch.get_rng_state(),
        },
        temporary,
    )
    temporary.replace(path)


def read_state(path: Path) -> dict[str, Any]:
    """Read a checkpoint of `save_state`.

    Raises:
        ValueError: there is none.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist; leave out --resume to start anew")
    return torch.load(path, map_location="cpu", weights_only=True)


def restore(state: dict[str, Any], draft: Eagle3Draft, optimizer: torch.optim.Optimizer) -> Progress:
    """Put a checkpoint into a draft and its optimizer.

    Raises:
        ValueError: the checkpoint is of another draft.
    """
    if state["config"] != repr(draft.config):
        raise ValueError("the checkpoint is of a draft with other options; resume with the options it was begun with")
    own = trained(draft)
    for name, value in own.items():
        if name not in state["draft"] or state["draft"][name].shape != value.shape:
            raise ValueError(
                f"the checkpoint does not fit this draft ({name}); resume with the options it was begun with"
            )
        value.copy_(state["draft"][name])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    return Progress(**state["progress"])


def trained(draft: nn.Module) -> dict[str, Tensor]:
    """The parameters that learn, by name."""
    return {name: value.data for name, value in draft.named_parameters() if value.requires_grad}
