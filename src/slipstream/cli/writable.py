"""Files that a long run will write."""

from pathlib import Path


def check_writable(file: Path | None) -> None:
    """See before a long run that a file can be written; what it holds stays until there is something to write."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8"):
        pass
