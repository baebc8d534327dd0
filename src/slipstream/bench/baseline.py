"""Which times may be compared: those of one build with equal settings, told by a fingerprint.

A speed-up against a baseline with other graphs, another way to all-reduce or another number format measures the
difference in settings, so it is refused with a sentence that names what differs.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch.cuda import nccl

import slipstream
from slipstream.bench.report import hardware
from slipstream.config.engine import EngineConfig
from slipstream.engine.executor import Ranks

# Of an engine's settings these belong to a point, or follow from its sizes; all others must be equal.
OF_A_POINT = frozenset({"speculation", "max_len", "max_batch", "num_pages", "synthetic_accept_length"})
NCCL = "NCCL_"

Row = Mapping[str, Any]


def settings_of(
    executor: Ranks, config: EngineConfig, *, model: str, weights: str, dtype: str, device: torch.device, tp: int
) -> dict[str, Any]:
    """Everything but the shape of a cycle, the batch and the context that a time depends on; plain JSON types.

    model, weights: the target's name, and whether its weights are `dummy` or of a `checkpoint`.
    """
    engine = {each.name: getattr(config, each.name) for each in fields(config) if each.name not in OF_A_POINT}
    ways = executor.shares()[0].all_reduce
    return {
        "model": model,
        "weights": weights,
        "dtype": dtype,
        "device": device.type,
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
        "tp": tp,
        **engine,
        "graphs": config.graphs and device.type == "cuda",
        "run_ahead": config.run_ahead and config.graphs and device.type == "cuda",
        "all_reduce": ", ".join(f"{num_bytes}:{way}" for num_bytes, way, _ in ways),
        "nccl": nccl_settings(os.environ) if tp > 1 and device.type == "cuda" else "",
        "slipstream": slipstream.__version__,
        "torch": torch.__version__,
    }


def nccl_settings(environment: Mapping[str, str]) -> str:
    """NCCL's version and what tunes it."""
    version = ".".join(map(str, nccl.version())) if torch.cuda.is_available() else ""
    tuned = [f"{name}={value}" for name, value in sorted(environment.items()) if name.startswith(NCCL)]
    return " ".join([version, *tuned])


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Twelve letters that are equal exactly when the settings are."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What two settings disagree in: `name value (baseline value)`."""
    names = [*ours, *(name for name in theirs if name not in ours)]
    return [
        f"{name} {ours.get(name, 'unset')} (baseline {theirs.get(name, 'unset')})"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


def refuse_other_settings(row: Row, baseline: Row, *, source: str) -> None:
    """Let two rows be compared only if their fingerprints are one.

    Raises:
        ValueError: they differ; what in is named.
    """
    if row["fingerprint"] != baseline["fingerprint"]:
        differing = differences(row["settings"], baseline["settings"])
        raise ValueError(
            f"{source} was measured with other settings: {'; '.join(differing)}; a speed-up across them says nothing,"
            " so measure both sides alike"
        )


def cycle_ratio(row: Row, plain: Row) -> float:
    """R: a row's cycle over the plain step of the same settings, batch and context.

    Raises:
        ValueError: other settings.
    """
    refuse_other_settings(row, plain, source="the plain run")
    assert (plain["steps"], row["batch"], row["context"]) == (0, plain["batch"], plain["context"]), "not its plain run"
    return row["cycle_ms"] / plain["cycle_ms"]


def read_baseline(path: Path, *, bench: str = "latency") -> list[Row]:
    """Rows of an earlier run.

    Raises:
        ValueError: no such file, or it holds no rows of this measurement with settings.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ValueError(f"--baseline {path} does not exist; name a file that --out wrote") from None
    try:
        rows = [json.loads(line) for line in lines if line.strip()]
    except json.JSONDecodeError:
        raise ValueError(f"--baseline {path} is not JSON lines; name a file that --out wrote") from None
    found = [row for row in rows if row.get("bench") == bench and "fingerprint" in row]
    if not found:
        raise ValueError(f"--baseline {path} holds no rows of bench {bench}; name a file that --out wrote")
    return found


def comparable(settings: Mapping[str, Any], baseline: Sequence[Row], *, source: str) -> dict[tuple[Any, ...], Row]:
    """The baseline's rows with our settings, by point; the last of equal ones counts.

    Raises:
        ValueError: there are none; what the last row differs in is named.
    """
    ours = fingerprint(settings)
    same = [row for row in baseline if row["fingerprint"] == ours]
    if not same:
        refuse_other_settings({"fingerprint": ours, "settings": settings}, baseline[-1], source=source)
    return {point_of(row): row for row in same}


def point_of(row: Row) -> tuple[Any, ...]:
    """What a row's time is of, within one settings."""
    return (row["draft"], row["draft_placement"], row["steps"], row["batch"], row["context"])
