"""`slipstream pull`: bring a model to this machine."""

from typing import Annotated

import typer

from slipstream.weights.store import pull as bring


def pull(name: Annotated[str, typer.Argument(help="smollm2-135m, or ORG/NAME of the hub.")]) -> None:
    """Bring a model to this machine, unless it is here, and print where it lies."""
    print(bring(name))
