"""`slipstream doctor`: is this machine fit for what it is to run, and what should be set?"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from slipstream.cli.show import stdout_console, table
from slipstream.cli.writable import check_writable
from slipstream.config.hf import model_config
from slipstream.config.placement import REPLICATED, placement
from slipstream.doctor.collectives import CollectiveRow, DraftPlacement, DraftShape, Placing
from slipstream.doctor.latency import CPU_SETTINGS, CUDA_SETTINGS, DEFAULT, Health, Latency, Setting, probe
from slipstream.doctor.links import slowest_kind
from slipstream.doctor.nccl import PREFILL_ROWS, NcclReport, examine
from slipstream.doctor.shapes import NamedShape, named_shape
from slipstream.telemetry.progress import progress
from slipstream.weights.folder import read_config
from slipstream.weights.store import resolve_model

DEFAULT_SHAPE = "llama-3.1-8b"
MAX_SHOWN_LINKS = 28  # of eight GPUs


def nccl(
    tp: Annotated[int | None, typer.Option(help="Ranks; all GPUs if left out.")] = None,
    model: Annotated[str | None, typer.Option(help="Directory, .gguf file or pulled name.")] = None,
    shape: Annotated[str | None, typer.Option(help=f"A known shape instead; {DEFAULT_SHAPE} if left out.")] = None,
    steps: Annotated[int, typer.Option(min=1, max=16, help="Draft forwards a cycle.")] = 3,
    draft_tp: Annotated[str, typer.Option(help="Ranks the draft is cut over, or replicated.")] = REPLICATED,
    device: Annotated[str, typer.Option(help="cuda, or cpu to try it over gloo.")] = "cuda",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which a setting counts as hung.")] = 120.0,
    out: Annotated[Path | None, typer.Option(help="JSON file to write, as --json prints it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of tables.")] = False,
) -> None:
    """The links between the GPUs, the latency of an all-reduce under each setting, and what to set."""
    target = chosen_shape(model, shape)
    tp = settled_tp(tp, device=device)
    draft = placement(draft_tp, tp, words=REPLICATED)
    check_writable(out)
    kind = DraftPlacement.REPLICATED if draft.replicated else DraftPlacement.SHARDED
    with progress("Probing", len(CPU_SETTINGS if device == "cpu" else CUDA_SETTINGS), unit="settings") as meter:

        def measure(setting: Setting, sizes: Sequence[int]) -> Latency:
            meter.note(setting.name)
            found = probe(setting, device=device, tp=tp, sizes=sizes, timeout_s=timeout)
            meter.advance()
            return found

        report = examine(
            target,
            shape=target.name,
            tp=tp,
            device=device,
            draft=DraftShape(hidden_size=target.hidden_size),
            placing=Placing(kind=kind, ranks=draft.ranks),
            steps=steps,
            measure=measure,
        )
    if out is not None:
        out.write_text(json.dumps(report.as_row(), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report.as_row())) if as_json else print_report(report)


def chosen_shape(model: str | None, shape: str | None) -> NamedShape:
    """The widths to measure at.

    Raises:
        ValueError: both were given, or there is no such model or shape.
    """
    if model is None:
        return named_shape(shape or DEFAULT_SHAPE)
    if shape is not None:
        raise ValueError(f"--model {model} has a shape of its own, which --shape {shape} contradicts; give one of them")
    config = model_config(read_config(resolve_model(model)))
    return NamedShape(name=model, hidden_size=config.hidden_size, num_layers=config.num_layers)


def settled_tp(tp: int | None, *, device: str) -> int:
    """How many ranks to measure over.

    Raises:
        ValueError: there is nothing to connect, or not so many GPUs.
    """
    if device not in ("cuda", "cpu"):
        raise ValueError(f"--device is cuda or cpu, not {device}")
    num_gpus = torch.cuda.device_count() if device == "cuda" else 0
    if device == "cuda" and num_gpus == 0:
        raise ValueError("there is no CUDA device here; run this where the GPUs are, or try it with --device cpu")
    if tp is None:
        tp = num_gpus if device == "cuda" else 2
    if num_gpus == 1:
        raise ValueError("one GPU has nothing to be connected with; run this where there are two or more")
    if tp < 2:
        raise ValueError(f"one rank has nothing to be connected with; --tp is 2 or more, not {tp}")
    if device == "cuda" and tp > num_gpus:
        raise ValueError(f"--tp {tp} needs {tp} GPUs and there are {num_gpus}; lower it")
    return tp


def print_report(report: NcclReport) -> None:
    """Links, latencies, collectives, advice."""
    console = stdout_console()
    for text in link_lines(report):
        console.print(text)
    console.print(f"\nall-reduce over {report.tp} ranks, us, by rows of {report.shape} (the slowest rank counts)")
    rows = [latency_row(each, len(report.rows)) for each in report.latencies]
    console.print(table(["setting", *map(_rows_label, report.rows)], rows))
    console.print("bytes of a message: " + ", ".join(f"{size:,}" for size in report.sizes))
    for each in report.latencies:
        if each.reason:
            console.print(f"{each.setting.name}: {each.health.value}: {each.reason}")
    num_plain = sum(row.count for row in report.plain)
    console.print(f"\ncollectives of a cycle of {report.steps} steps (a plain decode step has {num_plain})")
    columns = ["name", "stage", "operation", "count", "bytes each", "ranks"]
    console.print(table(columns, collective_rows(report.cycle), texts=["stage", "operation"]))
    for line in advice_lines(report):
        console.print(line)


def link_lines(report: NcclReport) -> list[str]:
    """Each pair of GPUs, unless nvidia-smi did not say."""
    if report.device == "cpu":
        return ["links: none, CPU processes over gloo"]
    if not report.links:
        return ["links: unknown, nvidia-smi topo -m gave no matrix"]
    worst = slowest_kind(report.links, range(report.tp))
    lines = [f"links: the slowest among {report.tp} GPUs is {worst.value}"]
    lines += [f"  GPU{x.first} - GPU{x.second}  {x.kind.value} ({x.code})" for x in report.links[:MAX_SHOWN_LINKS]]
    if report.nvlink_gb_per_s:
        rates = sorted(set(report.nvlink_gb_per_s.values()))
        lines.append("  NVLink, each direction, GB/s a GPU: " + ", ".join(f"{rate:g}" for rate in rates))
    return lines


def latency_row(latency: Latency, num_sizes: int) -> list[str]:
    """A setting's line of the table; what has no numbers says why."""
    numbers = [f"{us:.1f}" for us in latency.us] or [latency.health.value] + ["-"] * (num_sizes - 1)
    return [latency.setting.name, *numbers]


def collective_rows(rows: tuple[CollectiveRow, ...]) -> list[list[str]]:
    """The cycle's table with its sum."""
    found = [[each.name, each.stage, each.op, str(each.count), f"{each.num_bytes:,}", str(each.ranks)] for each in rows]
    return [*found, ["all", "", "", str(sum(each.count for each in rows)), "", ""]]


def advice_lines(report: NcclReport) -> list[str]:
    """What to set, in words."""
    if report.device == "cpu":
        return ["\nnothing to set: gloo has no such settings, and GPUs behave differently"]
    if not any(each.setting.name == DEFAULT and each.health is Health.OK for each in report.latencies):
        return [f"\nno advice: {DEFAULT} as it comes gave no numbers to compare with"]
    if not report.advice:
        return ["\nnothing to set: no setting is faster than the default by more than the spread"]
    lines = ["\nfaster than NCCL as it comes:"]
    for each in report.advice:
        change = "saves" if each.largest_us >= 0 else "costs"
        lines.append(
            f"  {each.line or each.what}: {each.cycle_us:.0f} us a cycle, {each.plain_us:.0f} us a plain step;"
            f" {change} {abs(each.largest_us):.0f} us at {report.rows[-1]} rows"
        )
    if any(each.line for each in report.advice) and any(not each.line for each in report.advice):
        lines.append("  where shared memory serves, the environment only matters for gathers and broadcasts")
    return lines


def _rows_label(rows: int) -> str:
    return f"{rows} prefill" if rows == PREFILL_ROWS else str(rows)
