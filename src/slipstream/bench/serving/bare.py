"""What serving costs: a shape's cycles with a server around them beside the same cycles without.

`bench latency` times the bare cycles in a process of its own, before and after the server has the device; both sides
have the same random weights, decreed acceptance, batch and contexts.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.bench.placement import accept_length
from slipstream.bench.serving.children import printed_rows, served
from slipstream.bench.serving.rows import Row
from slipstream.bench.serving.shape import write_shape
from slipstream.bench.shapes import full_shape

START_S = 900.0  # for the server to load and to capture every batch size
SLACK = 8  # tokens of context beyond prompt and answer
MOST_REQUESTS = 256
KEPT = ("settings", "fingerprint", "hardware", "torch")  # of a bare row

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The shape, how it drafts, and where it runs."""

    shape: str
    steps: int
    acceptance: tuple[float, ...]  # by position, decreed
    device: str
    dtype: str
    tp: int
    draft_tp: str
    input_len: int
    max_tokens: int
    batches: tuple[int, ...]

    @property
    def accept_length(self) -> float:
        """What is decreed."""
        return accept_length(self.steps, self.acceptance)

    @property
    def ranks(self) -> list[str]:
        """Options that both sides take."""
        return [
            *("--steps", str(self.steps), "--device", self.device, "--dtype", self.dtype),
            *("--tp", str(self.tp), "--draft-tp", self.draft_tp),
        ]

    @property
    def latency_arguments(self) -> list[str]:
        """Bare cycles over the contexts that an answer passes through."""
        cycles = max(2, math.ceil((self.max_tokens - 1) / self.accept_length))
        return [
            *("bench", "latency", "--shape", self.shape, "--json", "--rounds", "1", *self.ranks),
            *("--batch", ",".join(map(str, self.batches)), "--context", str(self.input_len)),
            *("--cycles", str(cycles), "--acceptance", ",".join(map(str, self.acceptance))),
        ]

    def serve_arguments(self, target: Path, draft: Path) -> list[str]:
        """A server with the same weights' shapes."""
        drafted = ["--draft", str(draft), "--synthetic-accept-length", str(self.accept_length)]
        plain = ["--no-draft"]
        return [
            *("--model", str(target), "--dummy-weights", "--served-model-name", self.shape),
            *(drafted if self.steps else plain),
            *self.ranks,
            *("--max-batch", str(max(self.batches)), "--max-requests", str(max(MOST_REQUESTS, *self.batches))),
            *("--max-len", str(self.input_len + self.max_tokens + SLACK)),
        ]


@contextmanager
def served_shape(subject: Subject) -> Iterator[str]:
    """A server of random weights; its URL.

    Raises:
        ValueError: it does not come up; its own words.
    """
    with tempfile.TemporaryDirectory(prefix="slipstream-shape-") as folder:
        target, draft = write_shape(full_shape(subject.shape), Path(folder))
        with served(subject.serve_arguments(target, draft), start_s=START_S) as url:
            yield url


def with_bare(subject: Subject, serve: Callable[[], list[Row]], *, on_stage: Callable[[str], None]) -> list[Row]:
    """Rows of serving, the bare cycles before and after it beside them; on_stage is told what begins."""
    on_stage("timing the bare cycles, before")
    before = printed_rows(*subject.latency_arguments)
    rows = serve()
    on_stage("timing the bare cycles, after")
    after = printed_rows(*subject.latency_arguments)
    return [{**row, **beside(subject, row, before, after)} for row in rows]


def beside(subject: Subject, row: Row, before: Rows, after: Rows) -> Row:
    """The bare cycle of a row's batch, and how much longer serving takes; null where it was not timed."""
    found = [_point(subject, row["max_concurrency"], rows) for rows in (before, after)]
    cycles = [each["cycle_ms"] for each in found if each is not None]
    cycle_ms = sum(cycles) / len(cycles) if len(cycles) == len(found) else None
    length = row["accept_length"] if subject.steps else 1.0
    bare_ms = None if cycle_ms is None or length is None else cycle_ms / length
    return {
        "bare_cycle_ms": cycle_ms,
        "bare_cycle_before_ms": None if found[0] is None else found[0]["cycle_ms"],
        "bare_cycle_after_ms": None if found[1] is None else found[1]["cycle_ms"],
        "bare_tpot_ms": bare_ms,
        "tpot_over_bare": _over(row["mean_tpot_ms"], bare_ms),
        "chunk_over_bare": _over(row["mean_itl_ms"], cycle_ms),
        **{name: after[0][name] for name in KEPT},
    }


def _point(subject: Subject, batch: int, rows: Rows) -> dict[str, Any] | None:
    return next((row for row in rows if (row["steps"], row["batch"]) == (subject.steps, batch)), None)


def _over(measured: float | None, bare: float | None) -> float | None:
    return None if measured is None or bare is None else measured / bare - 1
