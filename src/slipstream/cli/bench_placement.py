"""`slipstream bench placement`: which placement and how many steps win, as the wire gets slower, and why."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from slipstream.bench.placement import NUM_PROMPT, WARM_UP, Found, Sweep, config_of, measure
from slipstream.bench.placement_sums import as_rows
from slipstream.bench.report import environment
from slipstream.bench.shapes import full_shape
from slipstream.cli.bench import print_rows, record
from slipstream.cli.lists import numbers, sizes
from slipstream.cli.placement_tables import print_found
from slipstream.config.draft import DraftConfig
from slipstream.config.model import ModelConfig
from slipstream.config.placement import REPLICATED, Placement, placement, placements
from slipstream.config.speculation import MAX_STEPS
from slipstream.engine.executor import RankExecutor
from slipstream.engine.group import open_executor
from slipstream.engine.placement import choose_placement
from slipstream.flow.orders import LoadTarget, PlaceDraft, SetDelay
from slipstream.runner.load import read_model_config
from slipstream.telemetry.clock import Clock
from slipstream.telemetry.progress import progress
from slipstream.weights.store import resolve_model

DEFAULT_SHAPE = "llama-3.1-8b"
ACCEPTANCE = "0.7,0.62,0.57,0.53,0.5"  # of a well trained head on chat, by position
DTYPES = {"cuda": "bfloat16", "cpu": "float32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What is loaded: checkpoints, or random weights of a shape."""

    name: str
    config: ModelConfig
    path: str | None
    draft_path: str | None
    dummy: DraftConfig | None


def bench_placement(
    shape: Annotated[str | None, typer.Option(help=f"Random weights; {DEFAULT_SHAPE} if left out.")] = None,
    model: Annotated[str | None, typer.Option(help="A checkpoint instead; needs --draft.")] = None,
    draft: Annotated[str | None, typer.Option(help="Folder of its draft.")] = None,
    tp: Annotated[int, typer.Option(min=1, help="Ranks the target is cut over.")] = 2,
    steps: Annotated[str, typer.Option(help="Draft forwards a cycle; 0 is plain decoding.")] = "0,1,3,5",
    where: Annotated[str, typer.Option("--placements", help="all, or some of 1, 2, ..., replicated.")] = "all",
    inject_us: Annotated[str, typer.Option(help="Microseconds added to every collective.")] = "0,25,50,100,500",
    batch: Annotated[str, typer.Option(help="Requests that run together.")] = "1,4,16",
    cycles: Annotated[int, typer.Option(min=2, help="Timed of each point and round.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Over all points, so that a drift meets each.")] = 2,
    acceptance: Annotated[str, typer.Option(help="By position, decreed; the last holds for all beyond.")] = ACCEPTANCE,
    auto_starts: Annotated[int, typer.Option(min=0, help="Let --draft-tp auto choose so many times.")] = 0,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    out: Annotated[Path | None, typer.Option(help="JSONL file to add every point to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows instead of tables.")] = False,
) -> None:
    """Cycles under every placement, number of steps and slowness of the wire, with the arithmetic beside them."""
    if device not in DTYPES:
        raise ValueError(f"--device is {' or '.join(DTYPES)}, not {device}")
    models = _chosen(shape, model, draft)
    order = PlaceDraft(path=models.draft_path, placement=placements(tp)[0], dtype=DTYPES[device], dummy=models.dummy)
    sweep = Sweep(
        draft=order,
        vocab_size=models.config.vocab_size,
        steps=tuple(sorted(sizes("--steps", steps, int, low=0, high=MAX_STEPS))),
        placements=_places(where, tp),
        inject_us=tuple(sorted(sizes("--inject-us", inject_us, float, low=0, high=1e6))),
        batches=sizes("--batch", batch, int, low=1, high=256),
        acceptance=numbers("--acceptance", acceptance, float, low=0, high=1),
        cycles=cycles,
        rounds=rounds,
    )
    record(out)
    executor = open_executor(tp, torch.device(device))
    try:
        executor.order(_load_order(models, sweep, device))
        found = _swept(executor, sweep)
        chosen = _let_choose(executor, sweep, tp, auto_starts)
    finally:
        executor.close()
    settings = {"bench": "placement", "shape": models.name, "tp": tp, "dtype": DTYPES[device], "prompt": NUM_PROMPT}
    rows = [{**settings, **row, **environment(executor.rank.device)} for row in as_rows(found)]
    record(out, *rows)
    print_rows(rows) if as_json else print_found(found, rows[0], beside=_reference(sweep))
    for line in chosen:
        print(line, file=sys.stderr if as_json else sys.stdout)


def _chosen(shape: str | None, model: str | None, draft: str | None) -> Models:
    if (model is None) != (draft is None):
        raise ValueError("--model and --draft go together; give both, or --shape")
    if model is None or draft is None:
        name = shape or DEFAULT_SHAPE
        full = full_shape(name)
        return Models(name=name, config=full.target, path=None, draft_path=None, dummy=full.draft)
    if shape is not None:
        raise ValueError(f"--model {model} has a shape of its own, which --shape {shape} contradicts; give one of them")
    path = resolve_model(model)
    return Models(
        name=model, config=read_model_config(path), path=str(path), draft_path=str(resolve_model(draft)), dummy=None
    )


def _places(where: str, tp: int) -> tuple[Placement, ...]:
    if where == "all":
        return placements(tp)
    words = f"all, {REPLICATED}"
    return tuple(placement(each.strip(), tp, option="--placements", words=words) for each in where.split(","))


def _load_order(models: Models, sweep: Sweep, device: str) -> LoadTarget:
    longest = NUM_PROMPT + (WARM_UP + sweep.cycles + 2) * (max(sweep.steps) + 1)
    if longest > models.config.max_position:
        raise ValueError(f"--cycles {sweep.cycles} needs a context of {longest} tokens; lower it")
    return LoadTarget(config=models.config, path=models.path, dtype=DTYPES[device], max_position=longest)


def _swept(executor: RankExecutor, sweep: Sweep) -> Found:
    with progress("Timing", sweep.num_points, unit="points") as meter:
        return measure(executor, sweep, clock=Clock(), on_point=meter.done)


def _let_choose(executor: RankExecutor, sweep: Sweep, tp: int, starts: int) -> list[str]:
    """What `--draft-tp auto` chooses at the fastest and the slowest wire, several times each."""
    lines = []
    steps = max(sweep.steps)
    for inject_us in (sweep.inject_us[0], sweep.inject_us[-1]) if starts and steps else ():
        executor.order(SetDelay(microseconds=inject_us))
        names = []
        for _ in range(starts):
            choice = choose_placement(
                executor, sweep.draft, config_of(sweep, steps), vocab_size=sweep.vocab_size, clock=Clock(), tp=tp
            )
            names.append(f"{choice.placement}{' (tied)' if choice.tied else ''}")
        lines.append(f"auto at {inject_us:g} us injected, K {steps}, {starts} starts: {', '.join(names)}")
    executor.order(SetDelay(microseconds=0.0))
    return lines


def _reference(sweep: Sweep) -> str:
    """The placement that the others are compared with: whole on every rank, which sends least."""
    whole = [str(each) for each in sweep.placements if each.replicated]
    return whole[0] if whole else str(sweep.placements[0])
