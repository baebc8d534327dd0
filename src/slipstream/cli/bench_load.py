"""`slipstream bench load`: how near loading comes to what the storage gives."""

import json
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer

from slipstream.bench.load import METHODS, measure
from slipstream.bench.report import append_rows, environment
from slipstream.cli.show import stdout_console, table
from slipstream.telemetry.progress import progress
from slipstream.weights.store import resolve_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def bench_load(
    model: Annotated[str, typer.Option(help="Folder of .safetensors files.")],
    ranks: Annotated[list[int] | None, typer.Option(help="Rank 0 of so many loads its share; 1 and 2.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="May be given several times; bfloat16.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="The median of the rounds counts.")] = 5,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="JSONL file to add the result to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a row instead of a table.")] = False,
) -> None:
    """The storage's read rate and the loader's, over the same files, each out of nobody's cache."""
    sizes, dtypes = ranks or [1, 2], dtype or ["bfloat16"]
    if unknown := next((name for name in dtypes if name not in DTYPES), None):
        raise ValueError(f"--dtype {unknown} is not known; use {', '.join(DTYPES)}")
    where = torch.device(device)
    with progress("Reading", rounds * (len(METHODS) + len(sizes) * len(dtypes)), unit="runs") as meter:
        found = measure(
            resolve_model(model),
            sizes=sizes,
            dtypes=[DTYPES[name] for name in dtypes],
            device=where,
            rounds=rounds,
            on_run=meter.advance,
        )
    row = {
        "bench": "load",
        "model": model,
        "storage_bytes_per_s": found.storage,
        "load_bytes_per_s": found.loads,
        **environment(where),
    }
    if out is not None:
        append_rows(out, [row])
    print(json.dumps(row)) if as_json else print_load(row)


def print_load(row: dict[str, Any]) -> None:
    """Each way of reading, then each share, beside the best way's median."""
    storage, loads = row["storage_bytes_per_s"], row["load_bytes_per_s"]
    best = max(map(median, storage.values()))
    lines = [
        [
            name,
            f"{median(rates) / 1e9:.2f}",
            f"{min(rates) / 1e9:.2f}-{max(rates) / 1e9:.2f}",
            f"{median(rates) / best:.2f}",
        ]
        for name, rates in [*((f"read {name}", rates) for name, rates in storage.items()), *loads.items()]
    ]
    console = stdout_console()
    console.print(table(("stored bytes", "GB/s", "spread", "of the best read"), lines))
    console.print(f"{row['hardware']}, {row['threads']} threads; median of {len(next(iter(loads.values())))} rounds")
