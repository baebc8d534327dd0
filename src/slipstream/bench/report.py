"""Rows of results: what was measured, on what, with what and when, one JSON object a line."""

import json
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import slipstream

CPU_INFO = Path("/proc/cpuinfo")


def environment(device: torch.device) -> dict[str, Any]:
    """What a number depends on besides its own settings."""
    return {
        "slipstream": slipstream.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def hardware(device: torch.device) -> str:
    """The name of the GPU or the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or platform.machine())


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows to a JSONL file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
