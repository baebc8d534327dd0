"""`slipstream bench latency`: plain steps and cycles beside the memory's floor, cost apart from acceptance."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.bench.baseline import Row, comparable, point_of, read_baseline, settings_of
from slipstream.bench.latency import LatencyFound, LatencySweep, as_rows, compare, config_of, longest, measure
from slipstream.bench.latency_rates import memory_rates
from slipstream.bench.report import environment
from slipstream.bench.shapes import full_shape
from slipstream.cli.bench import print_rows, record
from slipstream.cli.bench_placement import ACCEPTANCE, DEFAULT_SHAPE
from slipstream.cli.latency_tables import print_latency
from slipstream.cli.lists import numbers, sizes
from slipstream.cli.spread import spread
from slipstream.config.draft import CaptureConvention, DraftConfig
from slipstream.config.model import ModelConfig
from slipstream.config.placement import LEADER_ALONE, placement
from slipstream.config.speculation import MAX_STEPS
from slipstream.draft.checkpoint import read_draft_config
from slipstream.engine.executor import RankExecutor
from slipstream.engine.group import open_executor
from slipstream.engine.placement import choose_placement
from slipstream.flow.orders import LoadTarget, PlaceDraft
from slipstream.runner.load import read_model_config
from slipstream.serve.settle import dtype_name, settle_device, settle_dtype, settle_paths
from slipstream.telemetry.clock import Clock
from slipstream.telemetry.progress import progress

CONTEXTS = "128,2k,16k"
AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is timed: a checkpoint and its draft, or random weights of a shape."""

    name: str
    draft_name: str | None
    config: ModelConfig
    path: Path | None
    draft_path: Path | None
    dummy: DraftConfig | None

    @property
    def has_draft(self) -> bool:
        """Whether anything can be drafted."""
        return self.draft_path is not None or self.dummy is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The cells, as they were written."""

    steps: Annotated[str, typer.Option(help="Draft forwards a cycle; 0, plain, is always timed.")] = "0,1,2,3,5,7"
    batch: Annotated[str, typer.Option(help="Requests that decode together.")] = "1,4,16,64"
    context: Annotated[
        str | None, typer.Option(help=f"Tokens of each prompt, k = 1024; {CONTEXTS}, as far as they fit, if left out.")
    ] = None
    acceptance: Annotated[str, typer.Option(help="By position, decreed; the last holds for all beyond.")] = ACCEPTANCE
    cycles: Annotated[int, typer.Option(min=2, help="Timed of each point and round.")] = 48
    rounds: Annotated[int, typer.Option(min=1, help="Over all K of a batch and context.")] = 2

    def sweep(self, subject: "Subject", order: PlaceDraft) -> LatencySweep:
        """Read every list.

        Raises:
            ValueError: one is not a list of numbers in its range.
        """
        return LatencySweep(
            draft=order,
            vocab_size=subject.config.vocab_size,
            steps=_steps(sizes("--steps", self.steps, int, low=0, high=MAX_STEPS), subject),
            batches=sizes("--batch", self.batch, int, low=1, high=256),
            contexts=sizes("--context", self.context or CONTEXTS, tokens, low=2, high=1 << 24),
            acceptance=numbers("--acceptance", self.acceptance, float, low=0, high=1),
            cycles=self.cycles,
            rounds=self.rounds,
        )


@spread
def bench_latency(
    shape: Annotated[str | None, typer.Option(help=f"Random weights; {DEFAULT_SHAPE} if left out.")] = None,
    model: Annotated[str | None, typer.Option(help="A checkpoint instead: directory, pulled name, hub id.")] = None,
    draft: Annotated[str | None, typer.Option(help="Its draft; the shipped one if left out.")] = None,
    tp: Annotated[int, typer.Option(min=1, help="Ranks the target is cut over.")] = 1,
    draft_tp: Annotated[str, typer.Option(help="Ranks the draft is cut over; replicated; auto times all.")] = AUTO,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = AUTO,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = AUTO,
    baseline: Annotated[
        Path | None, typer.Option(help="JSONL of an earlier run to compare with; other settings are refused.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSONL file to add the results to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows instead of a table.")] = False,
    *,
    grid: Grid,
) -> None:
    """Plain step and cycle over K, batch and context: ms, TB/s, share of the floor, R, break-even."""
    where = settle_device(device)
    subject = chosen_subject(shape, model, draft)
    before = None if baseline is None else read_baseline(baseline)
    order = PlaceDraft(
        path=None if subject.draft_path is None else str(subject.draft_path),
        placement=LEADER_ALONE if draft_tp == AUTO else placement(draft_tp, tp),
        dtype=dtype_name(settle_dtype(dtype, where)),
        dummy=subject.dummy,
    )
    sweep, left_out = within_context(grid.sweep(subject, order), subject.config, asked=grid.context is not None)
    record(out)
    executor = open_executor(tp, where)
    try:
        _load(executor, subject, sweep)
        rates = memory_rates(executor.rank.device)
        sweep = _placed(executor, sweep, draft_tp, tp)
        settings = _settings(executor, sweep, subject, tp)
        earlier = None if before is None else comparable(settings, before, source=f"--baseline {baseline}")
        found = _measured(executor, sweep)
    finally:
        executor.close()
    if not found.timed:
        raise ValueError(found.left_out[0])
    rows = as_rows(found, rates, settings, draft=str(subject.draft_name), placement=str(sweep.draft.placement))
    if earlier is not None:
        _set_beside(rows, earlier, baseline)
    rows = [{**row, **environment(executor.rank.device)} for row in rows]
    record(out, *rows)
    for sentence in (*left_out, *found.left_out):
        print(sentence, file=sys.stderr)
    print_rows(rows) if as_json else print_latency(rows, rates)


def chosen_subject(shape: str | None, model: str | None, draft: str | None) -> Subject:
    """A checkpoint with its draft, or a shape with its head.

    Raises:
        ValueError: both, or a draft without a checkpoint.
    """
    if model is None:
        if draft is not None:
            raise ValueError(f"--draft {draft} needs a checkpoint to draft for; add --model, or leave it out")
        name = shape or DEFAULT_SHAPE
        full = full_shape(name)
        return Subject(
            name=name, draft_name="EAGLE-3 head", config=full.target, path=None, draft_path=None, dummy=full.draft
        )
    if shape is not None:
        raise ValueError(f"--model {model} has a shape of its own, which --shape {shape} contradicts; give one of them")
    paths = settle_paths(model, AUTO if draft is None else draft)
    config = read_model_config(paths.model)
    name = None
    if paths.draft is not None:
        read_draft_config(paths.draft, target=config, convention=CaptureConvention.AUTO)  # refused before loading
        name = paths.draft.name if draft is None else draft
    return Subject(name=model, draft_name=name, config=config, path=paths.model, draft_path=paths.draft, dummy=None)


def _steps(steps: tuple[int, ...], subject: Subject) -> tuple[int, ...]:
    if any(steps) and not subject.has_draft:
        raise ValueError(f"no draft ships for {subject.name}; pass --draft, or --steps 0")
    return tuple(sorted({0, *steps}))


def tokens(text: str) -> int:
    """A number of tokens; `2k` is 2048."""
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


def within_context(sweep: LatencySweep, config: ModelConfig, *, asked: bool) -> tuple[LatencySweep, list[str]]:
    """The contexts that the model has room for, and a sentence for each that was left out.

    Raises:
        ValueError: one that was asked for is too long, or none is left.
    """
    beyond = [each for each in sweep.contexts if longest(sweep, each) > config.max_position]
    if beyond and (asked or len(beyond) == len(sweep.contexts)):
        raise ValueError(
            f"context {beyond[0]} and {longest(sweep, beyond[0]) - beyond[0]} tokens of cycles are beyond the model's"
            f" context of {config.max_position} tokens; lower --context or --cycles"
        )
    kept = tuple(each for each in sweep.contexts if each not in beyond)
    sentences = [f"context {each} left out: the model's is {config.max_position} tokens" for each in beyond]
    return replace(sweep, contexts=kept), sentences


def _load(executor: RankExecutor, subject: Subject, sweep: LatencySweep) -> None:
    path = None if subject.path is None else str(subject.path)
    most = max(longest(sweep, each) for each in sweep.contexts)
    executor.order(LoadTarget(config=subject.config, path=path, dtype=sweep.draft.dtype, max_position=most))


def _placed(executor: RankExecutor, sweep: LatencySweep, draft_tp: str, tp: int) -> LatencySweep:
    """Let `auto` time every placement at the middle K."""
    drafting = [each for each in sweep.steps if each]
    if draft_tp != AUTO or tp == 1 or not drafting:
        return sweep
    config = config_of(sweep, drafting[len(drafting) // 2])
    choice = choose_placement(executor, sweep.draft, config, vocab_size=sweep.vocab_size, clock=Clock(), tp=tp)
    return replace(sweep, draft=replace(sweep.draft, placement=choice.placement))


def _settings(executor: RankExecutor, sweep: LatencySweep, subject: Subject, tp: int) -> dict[str, Any]:
    return settings_of(
        executor,
        config_of(sweep, 0),
        model=subject.name,
        weights="dummy" if subject.path is None else "checkpoint",
        dtype=sweep.draft.dtype,
        device=executor.rank.device,
        tp=tp,
    )


def _measured(executor: RankExecutor, sweep: LatencySweep) -> LatencyFound:
    with progress("Timing", sweep.num_points, unit="points") as meter:
        return measure(executor, sweep, clock=Clock(), on_point=meter.done)


def _set_beside(rows: list[dict[str, Any]], earlier: dict[tuple[Any, ...], Row], baseline: Path | None) -> None:
    if not compare(rows, earlier, point_of):
        raise ValueError(f"--baseline {baseline} has none of these K, batches and contexts; time some of its points")
