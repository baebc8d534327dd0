"""Options that stand in a panel of a verb's help."""

from typing import Any

import typer


def option(help: str, panel: str, *names: str, **more: Any) -> Any:
    """An option with its help. names: how it is written, where that is not its field's name; more: typer's."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=True, **more)
