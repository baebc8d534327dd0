"""How the HTTP door is to stand; settled by cli/door.py."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
MIB = 1 << 20


class ToolStyle(Enum):
    """How a model writes the calls of tools."""

    AUTO = "auto"  # by the model's chat template
    HERMES = "hermes"
    LLAMA = "llama"
    NONE = "none"


class ReasoningStyle(Enum):
    """How a model marks what it thinks before it answers."""

    AUTO = "auto"  # by the model's chat template
    THINK = "think"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Where to listen, whom to serve, and how much."""

    host: str = LOOPBACK
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    served_names: tuple[str, ...]  # the first is the one that answers name
    max_requests: int = 256  # answers in flight, waiting ones too
    max_body_bytes: int = 8 * MIB
    request_timeout_s: float = 600.0
    drain_s: float = 30.0
    speculation_metrics: bool = False  # in every answer; else in those that ask
    metrics_compat: str | None = None
    log_prompts: bool = False
    tools: ToolStyle = ToolStyle.AUTO
    reasoning: ReasoningStyle = ReasoningStyle.AUTO

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise ValueError(f"--port is a number from 0 (any free one) to 65535, not {self.port}")
        if self.max_requests < 1:
            raise ValueError(f"--max-requests must be 1 or more, not {self.max_requests}")
        if self.max_body_bytes < 1:
            raise ValueError("--max-body-mib must be above 0")
        if not 0 < self.request_timeout_s < float("inf"):
            raise ValueError(f"--request-timeout-s must be above 0 seconds, not {self.request_timeout_s}")
        if not 0 <= self.drain_s < float("inf"):
            raise ValueError(f"--drain-seconds must be 0 or more, not {self.drain_s}")
        if self.metrics_compat not in (None, "vllm"):
            raise ValueError(f"--metrics-compat {self.metrics_compat} is unknown; use vllm, or leave it out")
        if any(not key.strip() for key in self.api_keys):
            raise ValueError("an API key is empty; give one, or leave the option out")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine's process is to load."""

    model: Path  # where it is
    llm: dict[str, Any]  # what LLM is made with
    warm_up: bool = True
    profile_dir: Path | None = None
    chat_template: Path | None = None  # instead of the model's own
