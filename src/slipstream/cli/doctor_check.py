"""`slipstream doctor`: the machine, the draft's files and its wiring, verdict first."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer

from slipstream.cli.options import DEFAULT_MODEL
from slipstream.cli.show import positions, stdout_console, table
from slipstream.cli.spread import spread
from slipstream.cli.wiring import WiringOptions
from slipstream.doctor.checkup import DEFAULT_PROMPTS, DEFAULT_TOKENS, Asked, Checkup, Fault, check_up
from slipstream.doctor.environment import num_cores
from slipstream.doctor.finding import Finding, Grade
from slipstream.doctor.hypotheses import Row
from slipstream.doctor.report import DEFINITIONS, all_rows, checkup_row
from slipstream.serve.settle import settle_convention, settle_device, settle_dtype, settle_paths
from slipstream.telemetry.progress import progress
from slipstream.text.prompts import builtin_prompts, read_prompts

PRINTED = ("cross_entropy", "difference", "accept_length", "acceptance_by_position")


@spread
def check(
    wiring: WiringOptions,
    model: Annotated[str | None, typer.Option(help="Directory, .gguf file, pulled name or hub id.")] = None,
    draft: Annotated[str | None, typer.Option(help="The draft's folder; the shipped one if left out.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; one device is used.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Of the target: auto, float32, bfloat16 or float16.")] = "auto",
    capture_convention: Annotated[
        str, typer.Option(help="How the draft's layer ids read: auto, output or input.")
    ] = "auto",
    prompts: Annotated[Path | None, typer.Option(help="Prompts of your own; built-in ones if left out.")] = None,
    num_prompts: Annotated[int, typer.Option(min=2, help="Prompts that the target answers.")] = DEFAULT_PROMPTS,
    max_tokens: Annotated[int, typer.Option(min=8, help="Tokens of each answer.")] = DEFAULT_TOKENS,
    plant: Annotated[Fault | None, typer.Option(help="Wire the draft wrongly on purpose, to see it named.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with definitions.")] = False,
) -> None:
    """Is the machine fit, does the draft fit the target, is it wired rightly? Ends with 0, 1 (warning) or 2 (broken).

    The target answers a few prompts greedily; the draft is then scored on those answers under each way in which it
    could be fed and read. What is surely best is named, with the flag that sets it here and the key for SGLang and
    vLLM. `slipstream doctor nccl` measures communication, `slipstream doctor lossless` compares answers.
    """
    if model is None:
        raise ValueError(f"no model was named; pass --model, for example --model {DEFAULT_MODEL}")
    paths, where = settle_paths(model, "auto" if draft is None else draft), settle_device(device)
    if paths.draft is None:
        raise ValueError(f"no draft ships for {model}; pass --draft with a folder that holds one")
    asked = Asked(
        model=model,
        draft=paths.draft,
        device=where,
        dtype=settle_dtype(dtype, where),
        entries=tuple(builtin_prompts() if prompts is None else read_prompts(prompts)),
        num_prompts=num_prompts,
        max_tokens=max_tokens,
        convention=settle_convention(capture_convention),
        wiring=wiring.wiring(),
        fault=plant,
    )
    with progress("Examining", None, quiet=as_json) as meter, few_threads_if_busy(num_cores()):
        found = check_up(asked, on_stage=meter.note)
    print(json.dumps(checkup_row(found))) if as_json else print_checkup(found)
    raise typer.Exit(found.grade.exit_code)


@contextmanager
def few_threads_if_busy(cores: int) -> Iterator[None]:
    """One thread where others keep the cores busy: threads that wait for a displaced one cost several times as much."""
    before, load = torch.get_num_threads(), os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > cores / 2:
        torch.set_num_threads(max(1, min(before, cores - int(load))))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def print_checkup(found: Checkup) -> None:
    """The verdict, what to do, then the evidence."""
    console = stdout_console()
    planted = "" if found.asked.fault is None else f" (with {found.asked.fault.value} planted)"
    console.print(f"{found.grade.value}{planted}: {found.says}")
    for line in remedy_lines(found):
        console.print(line)
    if found.wiring.search is not None:
        console.print(f"\nwiring: {found.wiring.verdict.outcome.value}")
        columns = ("hypothesis", "layers", "cross-entropy", "difference", "interval", "accept length", "acceptance")
        rows = [hypothesis_cells(row) for row in all_rows(found.wiring)]
        console.print(table((*columns[:-1], "acceptance by position"), rows, texts=("layers",)))
        console.print(f"{found.wiring.num_prompts} prompts, {found.wiring.num_tokens} tokens that the target wrote")
    for title, findings in (("compatibility", found.compatibility), ("environment", found.environment.findings)):
        console.print(f"\n{title}")
        for finding in findings:
            console.print(f"  {finding.grade.value:8}{finding.name}: {finding.says}")
    console.print()
    for name in PRINTED:
        console.print(f"{name.replace('_', ' ')} = {DEFINITIONS[name]}")
    console.print(f"examined in {found.seconds:.0f} s")


def remedy_lines(found: Checkup) -> list[str]:
    """What to do, for each cause and each finding that is not well."""
    lines = []
    for cause in found.wiring.verdict.causes:
        lines += [f"  {cause.name}", f"    slipstream: {cause.slipstream}"]
        lines += [f"    SGLang:     {cause.sglang}", f"    vLLM:       {cause.vllm}"]
    ill = [each for each in (*found.compatibility, *found.environment.findings) if each.grade is not Grade.HEALTHY]
    return lines + [_remedy(finding) for finding in ill]


def _remedy(finding: Finding) -> str:
    return f"  {finding.name} ({finding.grade.value}): {finding.says}; {finding.remedy}"


def hypothesis_cells(row: Row) -> list[str]:
    """One line of the table."""
    indent = "  " * (row.round - 1)
    layers = ",".join(map(str, row.hypothesis.wiring.layers))
    if row.score is None:
        return [indent + row.hypothesis.name, layers, "impossible", "", "", "", ""]
    delta = row.difference
    return [
        indent + row.hypothesis.name,
        layers,
        f"{row.score.cross_entropy:.3f}",
        "" if delta is None else f"{delta.mean:+.3f}",
        "" if delta is None else f"{delta.low:+.3f} .. {delta.high:+.3f}",
        f"{row.score.walk.accept_length:.2f}",
        positions(row.score.walk.by_position),
    ]
