"""`slipstream bench`: accept length over prompts, and speed on this machine's CPU; numbers go with their names."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.bench import acceptance as acceptance_bench
from slipstream.bench import cpu as cpu_bench
from slipstream.bench import paired
from slipstream.bench.reference import Reference, has_transformers
from slipstream.bench.report import append_rows, environment
from slipstream.cli.options import DEFAULT_MODEL, SHIPPED, load, refuse_without_draft
from slipstream.cli.pull import pull_known
from slipstream.cli.results import print_acceptance, print_cpu
from slipstream.config.sampling import SamplingParams
from slipstream.parallel.spot import launched_spot
from slipstream.serve.llm import LLM
from slipstream.telemetry.progress import progress
from slipstream.text.prompts import PromptEntry, builtin_prompts, read_prompts
from slipstream.weights.shipped import shipped_draft, short_name
from slipstream.weights.store import resolve_model

BUILT_IN = "built-in"
SHAPE_FIELDS = ("steps", "topk", "draft_tokens")


Model = Annotated[str, typer.Option(help="Directory, .gguf file, pulled name or hub id.")]
Prompts = Annotated[Path | None, typer.Option(help="File of prompts; the built-in ones if left out.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N prompts.")]
Out = Annotated[Path | None, typer.Option(help="JSONL file to add the results to.")]


def acceptance(
    model: Model = DEFAULT_MODEL,
    draft: Annotated[
        list[str] | None, typer.Option(help="May be given several times; the shipped one if left out.")
    ] = None,
    prompts: Prompts = None,
    limit: Limit = None,
    steps: Annotated[int | None, typer.Option(help="Draft forwards a cycle, 4 if left out.")] = None,
    topk: Annotated[int | None, typer.Option(help="Branches a node; 1, a chain, if left out.")] = None,
    draft_tokens: Annotated[int | None, typer.Option(help="Nodes verified a cycle, without the root.")] = None,
    temperature: Annotated[list[float] | None, typer.Option(help="May be given several times; 0 if left out.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    max_batch: Annotated[int, typer.Option(help="Prompts that run together.")] = 16,
    seed: Annotated[int, typer.Option(help="Prompt i is sampled with seed + i.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows instead of tables.")] = False,
) -> None:
    """Accept length over a set of prompts, for each draft and temperature."""
    entries, temperatures = chosen_prompts(prompts, limit), list(dict.fromkeys(temperature or [0.0]))
    if len(draft or ()) > 1 and launched_spot() is not None:
        raise ValueError("a launcher's ranks serve one draft; give one --draft, or start without torchrun")
    record(out)
    all_params = [SamplingParams(max_tokens=max_tokens, temperature=each, seed=seed) for each in temperatures]
    rows: list[dict[str, Any]] = []
    lengths: list[tuple[float | None, ...]] = []  # of each row's answers
    for name in draft or [SHIPPED]:
        refuse_without_draft(model, name)
        shape = {"steps": steps, "topk": topk, "draft_tokens": draft_tokens}
        llm = load(model, name, **shape, max_batch=max_batch, device=device)
        for params in all_params:
            settings = {**settings_of(llm, model, name, prompts, entries, params), "max_batch": max_batch, "seed": seed}
            with progress(f"{settings['draft']}, T {params.temperature:g}", len(entries), unit="prompts") as meter:
                found = acceptance_bench.measure(llm, entries, params, on_finish=meter.advance)
            numbers = acceptance_bench.as_row(found, is_chain=llm.speculation.is_chain)
            rows.append({"bench": "acceptance", **settings, **numbers, **environment(llm.device)})
            lengths.append(found.accept_lengths)
            record(out, rows[-1])
    pairs = paired_rows(rows, lengths)
    record(out, *pairs)
    print_rows([*rows, *pairs]) if as_json else print_acceptance(rows, pairs)


def paired_rows(rows: Sequence[dict[str, Any]], lengths: Sequence[tuple[float | None, ...]]) -> list[dict[str, Any]]:
    """Every later draft beside the first, at each temperature: same prompts, same seeds."""
    num_temperatures = len({row["temperature"] for row in rows})
    found = []
    for place in range(num_temperatures, len(rows)):
        first, row = rows[place % num_temperatures], rows[place]
        pair = paired.compare(lengths[place % num_temperatures], lengths[place])
        shared = {name: row[name] for name in (*SHAPE_FIELDS, "model", "prompts", "temperature", "max_tokens", "seed")}
        found.append({"bench": "acceptance paired", **shared, **paired.as_row(pair, first["draft"], row["draft"])})
    return found


def cpu(
    model: Model = DEFAULT_MODEL,
    draft: Annotated[str, typer.Option(help="The shipped one if left out.")] = SHIPPED,
    prompts: Prompts = None,
    limit: Limit = 8,
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 128,
    steps: Annotated[int | None, typer.Option(help="Length of the chain, 4 if left out.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="The median of the rounds counts.")] = 3,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a row instead of tables.")] = False,
) -> None:
    """Plain and speculative speed in fp32 beside transformers', and what the parts of a cycle cost."""
    entries, params = chosen_prompts(prompts, limit), SamplingParams(max_tokens=max_tokens)
    record(out)
    pull_known(model)
    plain = load_cpu(model, None, None)
    fast = load_cpu(model, draft, steps) if has_draft(model, draft) else None
    reference = Reference(resolve_model(model)) if has_transformers() else None
    explain_absence(model, fast, reference)
    num_contenders = 1 + (fast is not None) + (reference is not None)
    with progress("Racing", rounds * num_contenders, unit="rounds") as meter:
        found = cpu_bench.measure(
            plain,
            fast,
            reference,
            entries,
            max_tokens=max_tokens,
            rounds=rounds,
            on_round=lambda name: meter.advance(),
        )
    settings = {**settings_of(fast or plain, model, draft, prompts, entries, params), "rounds": rounds}
    row = {"bench": "cpu", **settings, **cpu_bench.as_row(found), **environment(plain.device)}
    record(out, row)
    print_rows([row]) if as_json else print_cpu(row)


def chosen_prompts(file: Path | None, limit: int | None) -> list[PromptEntry]:
    """The first prompts of a file, or of the built-in set, which is in order of task and so taken across it."""
    if file is not None:
        return read_prompts(file)[:limit]
    entries = builtin_prompts()
    stride = max(1, len(entries) // limit) if limit else 1
    return entries[::stride][:limit]


def settings_of(
    llm: LLM, model: str, draft: str, prompts: Path | None, entries: Sequence[PromptEntry], params: SamplingParams
) -> dict[str, Any]:
    """What was run, without what it gave."""
    shape = llm.speculation
    return {
        "model": model,
        "draft": _draft_name(llm, draft),
        "prompts": prompts.name if prompts else BUILT_IN,
        "num_prompts": len(entries),
        "steps": shape.steps,
        "topk": shape.topk,
        "draft_tokens": shape.draft_tokens,
        "vllm_num_speculative_tokens": shape.draft_tokens if shape.is_chain else None,
        "sglang_num_draft_tokens": shape.num_rows,
        "temperature": params.temperature,
        "max_tokens": params.max_tokens,
    }


def _draft_name(llm: LLM, given: str) -> str | None:
    """The draft as it was named; the shipped one goes by its folder."""
    if llm.draft_path is None:
        return None
    return llm.draft_path.name if given == SHIPPED else given


def load_cpu(model: str, draft: str | None, steps: int | None) -> LLM:
    """Load a contender: fp32, one request at a time."""
    return load(model, draft, steps=steps, device="cpu", dtype="float32", max_batch=1)


def has_draft(model: str, draft: str) -> bool:
    """Whether there is something to speculate with."""
    return draft != SHIPPED or shipped_draft(short_name(Path(model))) is not None


def explain_absence(model: str, fast: LLM | None, reference: Reference | None) -> None:
    """Say what is not compared, and what would be needed."""
    if fast is None:
        print(f"no draft ships for {model}, so nothing is speculated; pass --draft", file=sys.stderr)
    if reference is None:
        print("transformers is not installed, so it is not compared; pip install transformers", file=sys.stderr)


def record(out: Path | None, *rows: dict[str, Any]) -> None:
    """Add rows to the file, if there is one; called with none before a long run, to see that it can be written."""
    if out is not None:
        append_rows(out, rows)


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """One JSON object a line."""
    for row in rows:
        print(json.dumps(row), flush=True)
