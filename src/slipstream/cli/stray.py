"""Words that belong to no option: a file after `--json`, which used to be taken there."""

from typing import Annotated

import typer

Stray = Annotated[list[str] | None, typer.Argument(hidden=True)]


def refuse_stray(words: list[str] | None, *, as_json: bool) -> None:
    """Raises ValueError if there is any, with what was probably meant."""
    if not words:
        return
    if as_json:
        raise ValueError(f"--json prints and takes no file; write one with --out {words[0]}")
    raise ValueError(f"{' '.join(words)} belongs to no option; see --help")
