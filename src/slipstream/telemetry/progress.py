"""Progress bars on stderr for what takes long: downloads, loading, training. A pipe or `quiet` sees nothing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

BYTES = "B"  # the unit that is printed as kB, MB, GB
_REFRESHES_PER_SECOND = 4


class Meter:
    """What the caller holds: `advance` as work gets done, `note` for a word that changes, such as a loss."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def advance(self, amount: float = 1) -> None:
        self._bar.advance(self._task, amount)

    def note(self, text: str) -> None:
        self._bar.update(self._task, note=text)

    def done(self, what: str) -> None:
        """One more piece of work is done, and this was it."""
        self.note(what)
        self.advance()


@contextmanager
def progress(description: str, total: float | None, *, unit: str = "", quiet: bool = False) -> Iterator[Meter]:
    """Show a bar while the block runs; `total` None is for work whose size is unknown."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        _AmountColumn(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        disable=quiet or not sys.stderr.isatty(),
        redirect_stdout=sys.stdout.isatty(),  # else what a verb prints into a pipe would end up on stderr
        refresh_per_second=_REFRESHES_PER_SECOND,
    )
    with bar:
        yield Meter(bar, bar.add_task(description, total=total, note=""))


class _AmountColumn(ProgressColumn):
    """`41/98 MB`, or `12/40 steps`."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        return Text(amount(task.completed, task.total, unit=self._unit))


def amount(done: float, total: float | None, *, unit: str) -> str:
    """Say how much is done, of how much, in a unit that suits the larger of the two."""
    divisor, name = _scale(total or done, unit)
    digits = 1 if divisor >= 1e9 else 0
    of = "" if total is None else f"/{total / divisor:.{digits}f}"
    return f"{done / divisor:.{digits}f}{of} {name}".rstrip()


def _scale(largest: float, unit: str) -> tuple[float, str]:
    if unit != BYTES:
        return 1, unit
    for divisor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= divisor:
            return divisor, name
    return 1, BYTES
