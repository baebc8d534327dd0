"""What a rank decided last, kept in memory and written when its group fails."""

import json
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

from slipstream.parallel.stamps import Stage

SUFFIX = ".jsonl"

Value = int | float | str | None | tuple["Value", ...] | list["Value"]


class DecisionRing:
    """The last `capacity` decisions; one append is one tuple, so that every cycle can afford it."""

    def __init__(self, capacity: int = 256) -> None:
        self._decisions: deque[tuple[int, Stage, dict[str, Value]]] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._decisions)

    def append(self, cycle: int, stage: Stage, **values: Value) -> None:
        """Remember integers: drafted tokens, accepted counts, emitted tokens, the tree's shape. No tensors."""
        self._decisions.append((cycle, stage, values))

    def write(self, path: Path, *, rank: int, reason: str) -> Path | None:
        """Write a header and one JSON line a decision to a file, or to rankN.jsonl in a folder; return the file.

        Never raises: None says that nothing could be written (full disk, no permission).
        """
        file = path if path.suffix == SUFFIX else path / f"rank{rank}{SUFFIX}"
        decisions = list(self._decisions)  # one step under the interpreter's lock, so the main thread may append
        header = {"rank": rank, "reason": reason, "time": datetime.now(UTC).isoformat(), "decisions": len(decisions)}
        lines = [header, *({"cycle": cycle, "stage": name(stage), **values} for cycle, stage, values in decisions)]
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(line, default=str) + "\n" for line in lines), encoding="utf-8")
        except (OSError, ValueError):
            return None
        return file


def name(stage: Stage) -> str:
    """The stage as it is printed."""
    return stage.name.lower()
