"""`slipstream serve`: an OpenAI-compatible server."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.cli.options import ModelOptions
from slipstream.cli.spread import spread
from slipstream.weights.store import resolve_model

HTTP, LIMITS, ANSWERS = "HTTP", "Limits", "Answers"
NEEDED = ("fastapi", "uvicorn", "prometheus_client", "msgspec")
KEY_VARIABLE = "SLIPSTREAM_API_KEY"
MIB = 1 << 20


def _option(help: str, panel: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=True)


@spread
def serve(
    model_name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The same as --model.")] = None,
    host: Annotated[str, _option("Address to listen on; 0.0.0.0 for all.", HTTP)] = "127.0.0.1",
    port: Annotated[int, _option("Port; 0 for any free one.", HTTP)] = 8000,
    served_model_name: Annotated[
        list[str] | None, _option("Name in requests and answers; may be given several times.", HTTP)
    ] = None,
    api_key: Annotated[list[str] | None, _option(f"Key that clients must bring; also ${KEY_VARIABLE}.", HTTP)] = None,
    api_key_file: Annotated[Path | None, _option("File with such keys, one a line.", HTTP)] = None,
    max_requests: Annotated[int, _option("Answers in flight, waiting ones too; more get 429.", LIMITS)] = 256,
    max_body_mib: Annotated[float, _option("Largest request body, MiB.", LIMITS)] = 8.0,
    request_timeout_s: Annotated[float, _option("Longest time for a request.", LIMITS)] = 600.0,
    drain_seconds: Annotated[float, _option("How long SIGTERM lets answers end.", LIMITS)] = 30.0,
    speculation_metrics: Annotated[
        bool, _option("Acceptance in every answer, not only where it is asked for.", ANSWERS, "--speculation-metrics")
    ] = False,
    tool_call_parser: Annotated[str, _option("auto, hermes, llama or none.", ANSWERS)] = "auto",
    reasoning_parser: Annotated[str, _option("auto, think or none.", ANSWERS)] = "auto",
    chat_template: Annotated[Path | None, _option("Jinja file instead of the model's own.", ANSWERS)] = None,
    metrics_compat: Annotated[str | None, _option("vllm: acceptance under its names too.", HTTP)] = None,
    log_prompts: Annotated[bool, _option("Write prompts and answers into the log.", HTTP, "--log-prompts")] = False,
    profile_dir: Annotated[Path | None, _option("Where /stop_profile writes traces.", HTTP)] = None,
    warm_up: Annotated[
        bool, _option("Run made-up requests before /ready says so.", HTTP, "--warm-up/--no-warm-up")
    ] = True,
    *,
    models: ModelOptions,
) -> None:
    """Answer OpenAI's HTTP interface; /docs lists every path."""
    check_extra()
    from slipstream.serve.http.server import run  # noqa: PLC0415 - needs the extra
    from slipstream.serve.http.settings import EngineSettings, HttpSettings  # noqa: PLC0415 - beside it

    llm = models.named(model_name).settings(together=models.max_batch)
    http = HttpSettings(
        host=host,
        port=port,
        api_keys=api_keys(api_key or (), api_key_file, os.environ.get(KEY_VARIABLE)),
        served_names=tuple(served_model_name or (llm["model"],)),
        max_requests=max_requests,
        max_body_bytes=int(max_body_mib * MIB),
        request_timeout_s=request_timeout_s,
        drain_s=drain_seconds,
        speculation_metrics=speculation_metrics,
        metrics_compat=metrics_compat,
        log_prompts=log_prompts,
        tools=chosen("--tool-call-parser", tool_call_parser, "ToolStyle"),
        reasoning=chosen("--reasoning-parser", reasoning_parser, "ReasoningStyle"),
    )
    engine = EngineSettings(
        model=resolve_model(llm["model"]).absolute(),
        llm=llm,
        warm_up=warm_up,
        profile_dir=profile_dir,
        chat_template=chat_template,
    )
    run(http, engine)


def check_extra() -> None:
    """Raises ValueError unless what the server needs is installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"slipstream serve needs {', '.join(missing)}; install it with: pip install 'slipstream[serve]'"
        )


def chosen(option: str, value: str, enum: str) -> Any:
    """A member of one of the settings' enums.

    Raises:
        ValueError: there is no such one.
    """
    from slipstream.serve.http import settings  # noqa: PLC0415 - needs the extra

    kind = getattr(settings, enum)
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{option} {value} is unknown; use {', '.join(each.value for each in kind)}") from None


def api_keys(given: Sequence[str], file: Path | None, variable: str | None) -> tuple[str, ...]:
    """All keys, from wherever they come.

    Raises:
        ValueError: the file cannot be read, or holds none.
    """
    found = [*given, *([variable] if variable else [])]
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError):
            raise ValueError(f"--api-key-file {file} cannot be read; give a file with a key a line") from None
        if not any(lines):
            raise ValueError(f"--api-key-file {file} holds no key; write one on each line")
        found += [line for line in lines if line]
    return tuple(dict.fromkeys(found))
