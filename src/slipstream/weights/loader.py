"""Fill a module's parameters from a checkpoint; the first tensor that does not fit is named."""

import contextlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from slipstream.weights.names import IGNORED_SUFFIXES, NameTable, Part
from slipstream.weights.placing import read_parameters
from slipstream.weights.reader import TensorSource


def load_weights(
    module: nn.Module,
    source: TensorSource,
    table: NameTable,
    *,
    device: torch.device,
    dtype: torch.dtype,
    also_known: Iterable[str] = (),
    on_tensor: Callable[[int], None] = lambda num_bytes: None,
) -> None:
    """Replace every parameter in `table` by its checkpoint tensors, or a rank's share of them, on `device` in `dtype`.

    also_known: checkpoint tensors that somebody else reads, so that they are no surprise here.
    on_tensor: told the bytes of each parameter as it is placed.

    Raises:
        ValueError: a tensor is missing, extra or misshapen, or a file fails; the first one is named.
    """
    check_names(source, table, also_known)
    own = dict(module.named_parameters())
    for name, parts in table.items():
        if name not in own:
            raise ValueError(f"the model has no parameter {name!r} for checkpoint tensor {parts[0].name!r}")
    with contextlib.closing(read_parameters(source, table, device=device, dtype=dtype)) as filled:
        for name, value in filled:
            place(module, name, value)
            on_tensor(value.numel() * value.element_size())


def check_names(source: TensorSource, table: NameTable, also_known: Iterable[str] = ()) -> None:
    """Compare a checkpoint with the names and shapes the model expects.

    Raises:
        ValueError: naming the first missing, misshapen or extra tensor.
    """
    present = set(source.names())
    expected = [part for parts in table.values() for part in parts]
    for part in expected:
        _check_part(source, present, part)
    known = {part.name for part in expected} | set(also_known)
    for name in sorted(present - known):
        if not name.endswith(IGNORED_SUFFIXES):
            raise ValueError(
                f"checkpoint tensor {name!r} {list(source.shape(name))} belongs to nothing in this architecture;"
                " check that config.json matches the weights"
            )


def place(module: nn.Module, name: str, value: Tensor) -> None:
    """Put one tensor in the place of a parameter (which may be on the meta device)."""
    owner_name, _, leaf = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    setattr(owner, leaf, nn.Parameter(value, requires_grad=False))


def _check_part(source: TensorSource, present: set[str], part: Part) -> None:
    if part.name not in present:
        raise ValueError(
            f"the checkpoint lacks tensor {part.name!r} {list(part.shape)}; is it complete, and does config.json match?"
        )
    found = tuple(source.shape(part.name))
    if found != part.shape:
        raise ValueError(
            f"checkpoint tensor {part.name!r} is {list(found)} but config.json asks for {list(part.shape)};"
            " the weights and the config belong to different models"
        )
