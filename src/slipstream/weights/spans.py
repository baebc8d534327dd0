"""What the sources of tensors share: cuts as indices, and the sentences for files that fail."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.weights.names import PartCut


def index_of(cuts: Sequence[PartCut]) -> tuple[slice, ...]:
    """The index that takes what the cuts leave, at most one of them a dimension."""
    spans = {cut.dim: slice(cut.start, cut.stop) for cut in cuts}
    return tuple(spans.get(dim, slice(None)) for dim in range(max(spans, default=-1) + 1))


def span_along(dim: int, shape: Sequence[int], cuts: Sequence[PartCut]) -> range:
    """What the cuts leave along one dimension; a scalar has one row."""
    whole = range(shape[dim]) if shape else range(1)
    return next((range(cut.start, cut.stop) for cut in cuts if cut.dim == dim), whole)


def known(name: str, names: Mapping[str, Any] | Sequence[str], path: Path) -> str:
    """Pass a tensor's name on if the file has it."""
    if name not in names:
        raise ValueError(f"{path} has no tensor {name}; it does not fit this model")
    return name


def first_line(error: BaseException) -> str:
    """Shorten another library's words to what fits into a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")[:120]


def damaged(path: Path, error: BaseException) -> ValueError:
    """Word what a file that cannot be opened is told."""
    return ValueError(f"{path} is damaged or cut short ({first_line(error)}); download it again")


def shortened(path: Path) -> ValueError:
    """Word what a file that was whole when it was opened is told."""
    return ValueError(f"{path} became shorter while it was read; wait until nothing writes to it, or download it again")


def check_length(path: Path, num_bytes: int) -> None:
    """Refuse to touch a mapped file that has become shorter, which would end the process.

    Raises:
        ValueError: it has.
    """
    if path.stat().st_size < num_bytes:
        raise shortened(path)
