"""The options of the HTTP door, wherever it listens: of `slipstream serve`, and of its replicas under Ray Serve."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from slipstream.cli.options import ModelOptions
from slipstream.cli.panels import option
from slipstream.weights.store import resolve_model

HTTP, LIMITS, ANSWERS = "HTTP", "Limits", "Answers"
NEEDED = ("fastapi", "uvicorn", "prometheus_client", "msgspec")
NEEDED_BY_LOAD = ("aiohttp",)  # of `slipstream bench serving`, whose server may be anyone's
KEY_VARIABLE = "SLIPSTREAM_API_KEY"
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorOptions:
    """Whom to serve, how much, and what answers hold."""

    served_model_name: Annotated[
        list[str] | None, option("Name in requests and answers; may be given several times.", HTTP)
    ] = None
    api_key: Annotated[list[str] | None, option(f"Key that clients must bring; also ${KEY_VARIABLE}.", HTTP)] = None
    api_key_file: Annotated[Path | None, option("File with such keys, one a line.", HTTP)] = None
    max_requests: Annotated[int, option("Answers in flight, waiting ones too; more get 429.", LIMITS)] = 256
    max_body_mib: Annotated[float, option("Largest request body, MiB.", LIMITS)] = 8.0
    request_timeout_s: Annotated[float, option("Longest time for a request.", LIMITS)] = 600.0
    drain_seconds: Annotated[float, option("How long SIGTERM lets answers end.", LIMITS)] = 30.0
    speculation_metrics: Annotated[
        bool, option("Acceptance in every answer, not only where it is asked for.", ANSWERS, "--speculation-metrics")
    ] = False
    tool_call_parser: Annotated[str, option("auto, hermes, llama or none.", ANSWERS)] = "auto"
    reasoning_parser: Annotated[str, option("auto, think or none.", ANSWERS)] = "auto"
    chat_template: Annotated[Path | None, option("Jinja file instead of the model's own.", ANSWERS)] = None
    metrics_compat: Annotated[str | None, option("vllm: acceptance under its names too.", HTTP)] = None
    log_prompts: Annotated[bool, option("Write prompts and answers into the log.", HTTP, "--log-prompts")] = False
    warm_up: Annotated[bool, option("Run made-up requests before /ready says so.", HTTP, "--warm-up/--no-warm-up")] = (
        True
    )

    def settings(self, models: ModelOptions, *, profile_dir: Path | None = None, **address: Any) -> tuple[Any, Any]:
        """HttpSettings and EngineSettings; address: the host and port to listen on, where that is ours to say.

        Raises:
            ValueError: a value that cannot be, or options that contradict each other.
        """
        from slipstream.serve.http.settings import EngineSettings, HttpSettings  # noqa: PLC0415 - needs the extra

        llm = models.settings(together=models.max_batch)
        http = HttpSettings(
            **address,
            api_keys=api_keys(self.api_key or (), self.api_key_file, os.environ.get(KEY_VARIABLE)),
            served_names=tuple(self.served_model_name or (llm["model"],)),
            max_requests=self.max_requests,
            max_body_bytes=int(self.max_body_mib * MIB),
            request_timeout_s=self.request_timeout_s,
            drain_s=self.drain_seconds,
            speculation_metrics=self.speculation_metrics,
            metrics_compat=self.metrics_compat,
            log_prompts=self.log_prompts,
            tools=chosen("--tool-call-parser", self.tool_call_parser, "ToolStyle"),
            reasoning=chosen("--reasoning-parser", self.reasoning_parser, "ReasoningStyle"),
        )
        engine = EngineSettings(
            model=resolve_model(llm["model"]).absolute(),
            llm=llm,
            warm_up=self.warm_up,
            profile_dir=profile_dir,
            chat_template=self.chat_template,
        )
        return http, engine


def check_extra(verb: str = "serve", needed: Sequence[str] = NEEDED) -> None:
    """Raises ValueError unless what the server, or another verb, needs of the extra is installed."""
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"slipstream {verb} needs {', '.join(missing)}; install it with: pip install 'slipstream[serve]'"
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
