"""What verbs print: tinted answers, counts by name, tables. Results go to stdout, everything else to stderr."""

import re
import sys
import textwrap
from collections import deque
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from slipstream.flow.output import Statistics
from slipstream.serve.completion import Completion, Delta
from slipstream.text.detokenize import Detokenizer
from slipstream.text.tokenizer import Tokenizer

TINT, PLAIN = "\x1b[32m", "\x1b[0m"
PIPE_WIDTH = 160  # a table in a pipe or a file has room
HEADING_WIDTH = 72


def stdout_console() -> Console:
    """Where tables go; rich honours NO_COLOR and what the terminal can do."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, markup=False)  # a name may hold [brackets]


def may_tint() -> bool:
    """Whether stdout shows colours: a terminal that can, and no NO_COLOR."""
    console = Console(file=sys.stdout)
    return console.is_terminal and console.color_system is not None and not console.no_color


class TintedAnswer:
    """Prints a streamed answer; the text of accepted draft tokens is tinted, the target's own is plain.

    A delta brings the tokens of a cycle at once, and its text may lag behind them (a stop string may have begun). So
    the tokens are decoded here once more, one by one, to know how much text each is worth.
    """

    def __init__(self, tokenizer: Tokenizer, *, tint: bool) -> None:
        self._pieces: list[str] = []
        self._tint = tint
        self._detokenizer = Detokenizer(tokenizer)
        self._worth: deque[tuple[int, bool]] = deque()  # characters not yet shown, and whether they were drafted

    def show(self, delta: Delta) -> None:
        """Print what a delta made certain."""
        for place, token in enumerate(delta.token_ids):
            length = len(self._detokenizer.push([token]))
            if length:
                self._worth.append((length, place < delta.accepted))
        self._pieces.append(delta.text)
        print(self._painted(delta.text) if self._tint else delta.text, end="", flush=True)

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._pieces)

    def _painted(self, text: str) -> str:
        painted = ""
        while text and self._worth:
            length, drafted = self._worth.popleft()
            piece, text = text[:length], text[length:]
            if len(piece) < length:
                self._worth.appendleft((length - len(piece), drafted))
            painted += f"{TINT}{piece}{PLAIN}" if drafted else piece
        return painted + text


def heading(text: str) -> str:
    """The beginning of a prompt, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= HEADING_WIDTH else line[: HEADING_WIDTH - 3] + "..."


def positions(rates: Sequence[float]) -> str:
    """Acceptance by position, from position 1."""
    return " ".join(f"{rate:.2f}".removeprefix("0") for rate in rates) or "-"


def brief(completion: Completion) -> str:
    """One answer's counts in a line, for below its text."""
    statistics = completion.statistics
    parts = [f"{len(completion.token_ids)} tokens", f"{completion.decode_tokens_per_s:.1f} tok/s"]
    if statistics.proposed:
        parts.insert(1, f"accept length {statistics.accept_length:.2f}")
    return ", ".join(parts)


def total(completions: Sequence[Completion]) -> Statistics:
    """The counts of all answers together."""
    found = Statistics()
    for each in completions:
        found.add(each.statistics)
    return found


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, texts: Sequence[str] = ()) -> Table:
    """A table whose first column and `texts` are words, the others numbers; headings wrap to what stands below them."""
    found = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for place, column in enumerate(columns):
        width = max(len(row[place]) for row in rows)
        lines = textwrap.wrap(column, max(width, *map(len, re.split(r"(?<=-)| ", column))))
        found.add_column("\n".join(lines), justify="left" if place == 0 or column in texts else "right")
    for row in rows:
        found.add_row(*row)
    return found
