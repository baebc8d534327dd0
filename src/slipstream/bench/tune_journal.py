"""What has been measured already, one JSON object a line, so that a run that was killed goes on where it was."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slipstream.bench.baseline import differences

Record = Mapping[str, Any]


class Journal:
    """Keeps each measurement under its key; the first line says what was being tuned, and how."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open or begin a journal.

        Raises:
            ValueError: the file is another run's, or no journal.
        """
        self.path, self.num_reused = path, 0
        self._found: dict[str, Record] = {}
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]  # a killed run may have left half a line
        records = [_parsed(line, path) for line in whole]
        if not records:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"journal": "tune", "settings": dict(settings)}) + "\n", encoding="utf-8")
            return
        _refuse_others(records[0], settings, path)
        if len(whole) < len(lines):
            path.write_text("".join(whole), encoding="utf-8")
        self._found = {record["key"]: record for record in records[1:]}

    def __len__(self) -> int:
        return len(self._found)

    def once(self, key: str, measure: Callable[[], Record]) -> Record:
        """The record of a key: as it was measured before, or measured now and written down at once."""
        if key in self._found:
            self.num_reused += 1
            return self._found[key]
        record = {"key": key, **measure()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
        self._found[key] = record
        return record


def _parsed(line: str, path: Path) -> Record:
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        raise ValueError(f"{path} is not a journal of tune; name another file with --journal") from None
    if not isinstance(record, dict) or not ("key" in record or record.get("journal") == "tune"):
        raise ValueError(f"{path} is not a journal of tune; name another file with --journal")
    return record


def _refuse_others(first: Record, settings: Mapping[str, Any], path: Path) -> None:
    theirs = first.get("settings", {})
    if theirs != json.loads(json.dumps(dict(settings))):
        differing = "; ".join(differences(settings, theirs)).replace("(baseline ", "(there ")
        raise ValueError(
            f"{path} is the journal of another run: {differing}; delete it, or name another with --journal"
        )
