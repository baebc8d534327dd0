"""`slipstream serve`: an OpenAI-compatible server."""

from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.door import HTTP, DoorOptions, check_extra, option
from slipstream.cli.options import ModelOptions
from slipstream.cli.spread import spread


@spread
def serve(
    model_name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The same as --model.")] = None,
    host: Annotated[str, option("Address to listen on; 0.0.0.0 for all.", HTTP)] = "127.0.0.1",
    port: Annotated[int, option("Port; 0 for any free one.", HTTP)] = 8000,
    profile_dir: Annotated[Path | None, option("Where /stop_profile writes traces.", HTTP)] = None,
    *,
    door: DoorOptions,
    models: ModelOptions,
) -> None:
    """Answer OpenAI's HTTP interface; /docs lists every path."""
    check_extra()
    from slipstream.serve.http.server import run  # noqa: PLC0415 - needs the extra

    run(*door.settings(models.named(model_name), profile_dir=profile_dir, host=host, port=port))
