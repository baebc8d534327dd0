"""`slipstream tune`: the fastest steps, topk, draft tokens and placement for each batch size, on a resident target."""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.bench.baseline import settings_of
from slipstream.bench.cpu import prompt_ids
from slipstream.bench.report import environment
from slipstream.bench.tune import CONFIRMED, LAPS, PASSES, RETIMED, Search, Tuned, Tuner
from slipstream.bench.tune_grid import name_of, shapes
from slipstream.bench.tune_journal import Journal
from slipstream.bench.tune_plot import draw_curve
from slipstream.bench.tune_rows import as_rows, as_toml, summary
from slipstream.bench.tune_run import Task
from slipstream.cli.bench import BUILT_IN, chosen_prompts, print_rows, record
from slipstream.cli.lists import sizes
from slipstream.cli.options import DEFAULT_MODEL, SHIPPED, load, refuse_without_draft
from slipstream.cli.pull import pull_known
from slipstream.cli.spread import spread
from slipstream.cli.tune_tables import print_tuned
from slipstream.config.engine import EngineConfig
from slipstream.config.placement import Placement, placement, placements
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import MAX_DRAFT_TOKENS, MAX_STEPS, PLAIN
from slipstream.engine.executor import RankExecutor
from slipstream.serve.llm import LLM
from slipstream.telemetry.clock import Clock
from slipstream.telemetry.progress import progress

WARM_UP = {"cpu": 2, "cuda": 6}  # cycles; on a GPU a capture happens in the first
AUTO = "auto"
INSTALL_PLOT = "pip install 'slipstream[plot]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """What is chosen among."""

    batch: Annotated[str, typer.Option(help="Requests that run together; each size is tuned.")] = "1"
    steps: Annotated[str, typer.Option(help="Draft forwards a cycle; plain is always tried.")] = "1,2,3,4,5,6,8"
    topk: Annotated[str, typer.Option(help="Branches a node; 1 is a chain.")] = "1,2,4"
    draft_tokens: Annotated[str, typer.Option(help="Nodes of trees, without the root.")] = "4,6,8,12,16,24"
    draft_tp: Annotated[str, typer.Option(help="auto tries every placement; or one.")] = AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class CareOptions:
    """How thoroughly."""

    limit: Annotated[int, typer.Option(min=1, help="Only the first N prompts.")] = 24
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 64
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0
    seed: Annotated[int, typer.Option(help="Prompt i is sampled with seed + i.")] = 0
    cycles: Annotated[int, typer.Option(min=4, help="Timed of each shape.")] = 16
    rounds: Annotated[
        int, typer.Option(min=2, help="That cover the prompts, of real runs in turn with plain decoding.")
    ] = 3
    noise: Annotated[float, typer.Option(min=0, help="Gains up to this are ties, at least.")] = 0.01


@spread
def tune(
    model: Annotated[str, typer.Option(help="Directory, .gguf file, pulled name or hub id.")] = DEFAULT_MODEL,
    draft: Annotated[str, typer.Option(help="The same for the draft; the shipped one if left out.")] = SHIPPED,
    prompts: Annotated[Path | None, typer.Option(help="File of prompts; the built-in ones if left out.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Ranks the target is cut over.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = AUTO,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = AUTO,
    write: Annotated[Path, typer.Option(help="What generate, chat and serve take as --config.")] = Path("tuned.toml"),
    journal: Annotated[
        Path | None, typer.Option(help="Measurements, to go on from after an end; beside --write if left out.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG of the curve over steps; needs slipstream[plot].")] = None,
    out: Annotated[Path | None, typer.Option(help="JSONL file to add the results to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows instead of tables.")] = False,
    *,
    grid: GridOptions,
    care: CareOptions,
) -> None:
    """Search steps x topk x draft tokens x placement for each batch; plain decoding wins ties."""
    entries = chosen_prompts(prompts, care.limit)
    refuse_without_draft(model, draft)
    batches = sizes("--batch", grid.batch, int, low=1, high=256)
    candidates = chosen_shapes(grid)
    record(out)
    pull_known(model)
    settings = {"device": device, "dtype": dtype, "tp": tp, "steps": candidates[0].steps, "max_batch": 1}
    settings["draft_tp"] = "1" if grid.draft_tp == AUTO else grid.draft_tp
    llm = load(model, draft, **settings)
    executor = llm.started.executor
    assert isinstance(executor, RankExecutor), "spawned ranks are led from here"
    try:
        search = Search(
            draft=llm.started.draft,
            shapes=candidates,
            placements=_places(grid.draft_tp, llm.tp),
            batches=batches,
            task=_task(llm, [tuple(each) for each in prompt_ids(llm, entries)], care),
            vocab_size=llm.model_config.vocab_size,
            cycles=care.cycles,
            warm_up=WARM_UP[llm.device.type],
            rounds=care.rounds,
            least_noise=care.noise,
        )
        path = journal or write.with_suffix(".journal.jsonl")
        found = _searched(executor, search, Journal(path, _settings(llm, executor, search, model, draft)))
    finally:
        llm.close()
    common = {"model": model, "draft": draft, "prompts": prompts.name if prompts else BUILT_IN}
    common |= {"num_prompts": len(entries), "temperature": care.temperature, "max_tokens": care.max_tokens}
    rows = [{**row, **common, **environment(llm.device)} for row in as_rows(found)]
    rows.append({**summary(found, num_shapes=len(candidates) + 1), **common, **environment(llm.device)})
    record(out, *rows)
    write.write_text(as_toml(found, model=model, draft=None if draft == SHIPPED else draft), encoding="utf-8")
    print_rows(rows) if as_json else print_tuned(rows, found)
    print(f"{write} written; use it with `slipstream generate --config {write}`", file=sys.stderr)
    _draw(
        plot or write.with_suffix(".png"), rows[:-1], title=f"{model}, {rows[0]['hardware']}", wanted=plot is not None
    )


def chosen_shapes(grid: GridOptions) -> tuple[Any, ...]:
    """Every shape of the grid.

    Raises:
        ValueError: a list that is none, or no shape at all.
    """
    found = shapes(
        sizes("--steps", grid.steps, int, low=0, high=MAX_STEPS),
        sizes("--topk", grid.topk, int, low=1, high=MAX_DRAFT_TOKENS),
        sizes("--draft-tokens", grid.draft_tokens, int, low=1, high=MAX_DRAFT_TOKENS),
    )
    if not found:
        raise ValueError(f"--steps {grid.steps} leaves nothing but plain decoding to choose; name a number above 0")
    return found


def _places(draft_tp: str, tp: int) -> tuple[Placement, ...]:
    return placements(tp) if draft_tp == AUTO else (placement(draft_tp, tp),)


def _task(llm: LLM, prompts: list[tuple[int, ...]], care: CareOptions) -> Task:
    params = SamplingParams(max_tokens=care.max_tokens, temperature=care.temperature)
    longest = max(map(len, prompts)) + care.max_tokens + 1
    if longest > llm.max_len:
        raise ValueError(
            f"the longest prompt and {care.max_tokens} tokens take {longest} and the model's context is {llm.max_len};"
            " lower --max-tokens, or leave the prompt out"
        )
    eos_ids = frozenset(llm.tokenizer.eos_ids | set(llm.model_config.eos_ids))
    return Task(prompts=tuple(prompts), params=params, stop_ids=eos_ids, seed=care.seed)


def _settings(llm: LLM, executor: RankExecutor, search: Search, model: str, draft: str) -> dict[str, Any]:
    """What a journal's measurements depend on."""
    config = EngineConfig(speculation=PLAIN, max_len=2)
    dtype = str(llm.dtype).removeprefix("torch.")
    common = settings_of(executor, config, model=model, weights="checkpoint", dtype=dtype, device=llm.device, tp=llm.tp)
    del common["all_reduce"]  # timed anew at every start
    text = json.dumps(search.task.prompts)
    return {
        **common,
        "draft": draft,
        "prompts": hashlib.sha256(text.encode()).hexdigest()[:12],
        "shapes": " ".join(map(name_of, search.shapes)),
        "placements": ", ".join(map(str, search.placements)),
        "max_tokens": search.task.params.max_tokens,
        "temperature": search.task.params.temperature,
        "seed": search.task.seed,
        "cycles": search.cycles,
        "rounds": search.rounds,
    }


def _searched(executor: RankExecutor, search: Search, journal: Journal) -> Tuned:
    """Run the search with a bar that counts what it may take at most."""
    if len(journal):
        print(f"going on from {len(journal)} measurements in {journal.path}", file=sys.stderr)
    families = len({shape.topk for shape in search.shapes})
    timed = 1 + len(search.shapes) * len(search.placements) + RETIMED * LAPS
    confirmed = PASSES * search.rounds * (CONFIRMED + 1) + search.rounds
    with progress("Tuning", families + len(search.batches) * (timed + confirmed), unit="measurements at most") as meter:
        return Tuner(executor, search, journal, clock=Clock(), on_work=meter.done).run()


def _draw(path: Path, rows: list[dict[str, Any]], *, title: str, wanted: bool) -> None:
    """Draw the curve, or say what is missing.

    Raises:
        ValueError: it was asked for and matplotlib is not there.
    """
    if draw_curve(path, rows, title=title):
        print(f"{path} drawn", file=sys.stderr)
    elif wanted:
        raise ValueError(f"{path} was not drawn: matplotlib is not installed; {INSTALL_PLOT}, or leave --plot out")
    else:
        print(f"no plot was drawn: matplotlib is not installed; {INSTALL_PLOT}", file=sys.stderr)
