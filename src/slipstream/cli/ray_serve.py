"""What Ray Serve calls: `serve run slipstream.cli.ray_serve:build model=M tp=2 max_replicas=4`.

The arguments are options of `slipstream serve`, written with underscores, and those of `ScaleOptions`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from slipstream.cli.door import DoorOptions, check_extra, option
from slipstream.cli.options import SHIPPED, ModelOptions
from slipstream.cli.spread import spread

PANEL = "Replicas"
TRUTH = {"true": True, "false": False}  # `serve run` gives every argument as text
ELSEWHERE = {
    "host": "the address is Ray Serve's: http_options in its config file",
    "port": "the port is Ray Serve's: http_options in its config file",
    "profile_dir": "profiles are taken of a server by itself: slipstream serve --profile-dir",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOptions:
    """How many replicas there are."""

    min_replicas: Annotated[int, option("Replicas that always run.", PANEL)] = 1
    max_replicas: Annotated[int | None, option("Most of them; min_replicas if left out.", PANEL)] = None
    target_requests: Annotated[
        float | None, option("Requests in flight at a replica to scale for; max_batch if left out.", PANEL)
    ] = None


def build(args: dict[str, Any]) -> Any:
    """A Ray Serve application.

    Raises:
        ValueError: an argument that is unknown or cannot be, in one sentence.
    """
    check_extra()
    _check_ray()
    from slipstream.serve.ray.application import Scale, make_application  # noqa: PLC0415 - optional package

    scale, door, models = _options(args)
    http, engine = door.settings(models)
    llm = {**engine.llm, **{name: _absolute(engine.llm[name]) for name in ("model", "draft")}}
    template = None if engine.chat_template is None else engine.chat_template.absolute()
    return make_application(
        http,
        replace(engine, llm=llm, chat_template=template),
        Scale(
            min_replicas=scale.min_replicas,
            max_replicas=scale.min_replicas if scale.max_replicas is None else scale.max_replicas,
            target_requests=models.max_batch if scale.target_requests is None else scale.target_requests,
        ),
    )


@spread
def _gather(*, scale: ScaleOptions, door: DoorOptions, models: ModelOptions) -> Any:
    return scale, door, models


def _options(args: Mapping[str, Any]) -> Any:
    """The groups of options, read as the command line reads them."""
    app = typer.Typer(add_completion=False)
    app.command()(_gather)
    command = get_command(app)
    known = {each.name: each for each in command.params if each.name != "help"}
    line: list[str] = []
    for name, value in args.items():
        if name not in known:
            raise ValueError(f"{name} is no argument here; {ELSEWHERE.get(name, 'see slipstream serve --help')}")
        line += _written(known[name], value)
    try:
        return command.main(args=line, standalone_mode=False)
    except Exception as error:
        words = getattr(error, "format_message", None)  # typer's and click's own
        if words is None:
            raise
        raise ValueError(" ".join(words().split())) from None


def _written(parameter: Any, value: Any) -> Iterator[str]:
    """An argument as the command line has it."""
    name = parameter.opts[0]
    if value is None:
        return
    if not parameter.is_flag:
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        yield from (f"{name}={each}" for each in values)
        return
    truth = TRUTH.get(str(value).lower())
    if truth is None:
        raise ValueError(f"{parameter.name} is true or false, not {value!r}")
    yield from ([name] if truth else parameter.secondary_opts[:1])


def _absolute(place: str | None) -> str | None:
    """Replicas run in folders of their own; what is no path stays a name."""
    if place is None or place == SHIPPED or not (path := Path(place).expanduser()).exists():
        return place
    return str(path.absolute())


def _check_ray() -> None:
    try:
        import ray.serve  # noqa: PLC0415, F401 - optional package
    except ImportError:
        raise ValueError(
            "Ray Serve is not installed on this machine; install it with: pip install 'slipstream[serve,ray-serve]'"
        ) from None
