"""`slipstream doctor lossless`: does speculation change an answer here, with this model and these prompts?"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import slipstream
from slipstream.cli.options import DEFAULT_MODEL, SHIPPED, load, refuse_without_draft
from slipstream.cli.show import heading, stdout_console, table
from slipstream.cli.spread import spread
from slipstream.cli.wiring import WiringOptions
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.doctor.lossless import DEFINITIONS, Compared, Comparison, compare, comparison_row, seeded, shape_name
from slipstream.serve.completion import Completion
from slipstream.serve.settle import dtype_name
from slipstream.telemetry.progress import progress
from slipstream.text.prompts import PromptEntry, builtin_prompts, read_prompts

DEFAULT_CHAINS, DEFAULT_TREES = (1, 2, 4), ("3x2", "4x4x16")
DEFAULT_SEEDS = (1, 2)
NUM_BUILTIN = 8
MAX_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which models, and where they run."""

    model: Annotated[str | None, typer.Option(help="Directory, .gguf file, pulled name or hub id.")] = None
    draft: Annotated[str | None, typer.Option(help="The same for the draft; the shipped one if left out.")] = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda; or cuda:N, for one rank.")] = "auto"
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto"
    tp: Annotated[int | None, typer.Option(help="Ranks the target is cut over; a launcher's, else 1.")] = None
    draft_tp: Annotated[str, typer.Option(help="Ranks the draft is cut over; replicated; auto times all.")] = "auto"
    max_len: Annotated[int | None, typer.Option(help="Tokens of prompt and answer.")] = None
    max_batch: Annotated[int, typer.Option(help="Prompts that run together.")] = 16
    kv_gib: Annotated[float | None, typer.Option(help="GiB of keys and values on each rank.")] = None


@spread
def lossless(
    where: Where,
    wiring: WiringOptions,
    prompts: Annotated[Path | None, typer.Option(help="Prompts of your own; built-in ones if left out.")] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 64,
    chain: Annotated[list[int] | None, typer.Option(help="Steps of a chain; may be given several times.")] = None,
    tree: Annotated[
        list[str] | None, typer.Option(help="STEPSxTOPK or STEPSxTOPKxTOKENS; may be given several times.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Of the sampled runs; greedy ones are always made.")] = 1.0,
    seed: Annotated[list[int] | None, typer.Option(help="Of a sampled run; may be given several times.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with definitions.")] = False,
) -> None:
    """Answer plainly and speculatively, greedily and sampled, with chains and trees, and compare every token.

    Ends with 0 if all are the same, 2 if one is not, 1 if nothing was accepted, so that nothing was shown.
    """
    if where.model is None:
        raise ValueError(f"no model was named; pass --model, for example --model {DEFAULT_MODEL}")
    draft = SHIPPED if where.draft is None else where.draft
    refuse_without_draft(where.model, draft)
    shapes, samplings = chosen_shapes(chain, tree), chosen_samplings(max_tokens, temperature, seed)
    entries = builtin_prompts()[::4][:NUM_BUILTIN] if prompts is None else None
    entries = entries or read_prompts(Path(prompts or ""))
    llm = load_for(where, draft, shapes, wiring)
    with progress("Comparing", (1 + len(shapes)) * len(samplings), unit="runs", quiet=as_json) as meter:

        def ask(params: SamplingParams) -> list[Completion]:
            found = llm.chat([entry.conversation for entry in entries], seeded(params, len(entries)))
            meter.advance()
            return found

        found = compare(llm, ask, shapes, samplings, on_run=meter.note)
    row = lossless_row(where.model, llm, entries, max_tokens, found)
    print(json.dumps(row)) if as_json else print_compared(row, found, entries)
    raise typer.Exit(found.grade.exit_code)


def load_for(where: Where, draft: str, shapes: list[Speculation], wiring: WiringOptions) -> "slipstream.LLM":
    """Load an engine that can take every shape."""
    assert where.model is not None, "it was asked for"
    largest = max(shapes, key=lambda shape: shape.draft_tokens)
    return load(
        where.model,
        draft,
        steps=largest.steps,
        topk=largest.topk,
        draft_tokens=largest.draft_tokens,
        device=where.device,
        dtype=where.dtype,
        tp=where.tp,
        draft_tp=where.draft_tp,
        max_len=where.max_len,
        max_batch=where.max_batch,
        kv_gib=where.kv_gib,
        draft_wiring=wiring.wiring(),
    )


def chosen_shapes(chain: list[int] | None, tree: list[str] | None) -> list[Speculation]:
    """The cycles to compare; a few of both kinds if none is named.

    Raises:
        ValueError: one of them is no shape.
    """
    if not chain and not tree:
        chain, tree = list(DEFAULT_CHAINS), list(DEFAULT_TREES)
    shapes = [speculation(steps, 1) for steps in chain or ()]
    for text in tree or ():
        try:
            numbers = [int(number) for number in text.split("x")]
        except ValueError:
            numbers = []
        if len(numbers) not in (2, 3):
            raise ValueError(f"--tree takes STEPSxTOPK or STEPSxTOPKxTOKENS, such as 3x2, not {text!r}")
        shapes.append(speculation(*numbers))
    if any(shape.steps == 0 for shape in shapes):
        raise ValueError("a cycle of 0 steps is plain decoding; --chain and --tree take 1 step or more")
    return shapes


def chosen_samplings(max_tokens: int, temperature: float, seeds: list[int] | None) -> list[SamplingParams]:
    """Greedy, and one for each seed.

    Raises:
        ValueError: a value is out of range, or the sampled runs would be greedy.
    """
    if temperature == 0:
        if seeds:
            raise ValueError("--seed draws, and --temperature 0 does not; leave one of them out")
        return [SamplingParams(max_tokens=max_tokens)]
    sampled = [
        SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed) for seed in seeds or DEFAULT_SEEDS
    ]
    return [SamplingParams(max_tokens=max_tokens), *sampled]


def lossless_row(
    model: str, llm: "slipstream.LLM", entries: list[PromptEntry], max_tokens: int, found: Compared
) -> dict[str, Any]:
    """Everything that the command prints."""

    def spell(token: int) -> str:
        return llm.tokenizer.decode([token])

    return {
        "doctor": "lossless",
        "model": model,
        "draft": str(llm.draft_path),
        "verdict": found.grade.value,
        "says": found.says,
        "exit_code": found.grade.exit_code,
        "device": str(llm.device),
        "dtype": dtype_name(llm.dtype),
        "ranks": llm.tp,
        "num_prompts": len(entries),
        "max_tokens": max_tokens,
        "runs": [comparison_row(each, spell) for each in found.comparisons],
        "definitions": DEFINITIONS,
    }


def print_compared(row: dict[str, Any], found: Compared, entries: list[PromptEntry]) -> None:
    """The verdict, the first differences, then a line a run."""
    console = stdout_console()
    console.print(f"{row['verdict']}: {row['says']}")
    for run, comparison in zip(row["runs"], found.comparisons, strict=True):
        for each in run["differences"][:MAX_SHOWN]:
            console.print(f"  {run_name(comparison)}, prompt {each['prompt']}, {difference_words(each)}")
            console.print(f"    {heading(str(entries[each['prompt']].conversation[-1].get('content')))}")
    columns = ("run", "answers", "tokens", "accept length", "accept rate", "differences")
    lines = [
        [
            run_name(each),
            str(each.num_answers),
            str(each.num_tokens),
            f"{each.statistics.accept_length:.2f}",
            f"{each.statistics.accept_rate:.2f}",
            str(len(each.differences)),
        ]
        for each in found.comparisons
    ]
    console.print()
    console.print(table(columns, lines))
    console.print(f"{row['num_prompts']} prompts, {row['device']}, {row['dtype']}, ranks {row['ranks']}")
    for name in ("accept_length", "accept_rate", "differences"):
        console.print(f"{name.replace('_', ' ')} = {DEFINITIONS[name]}")


def run_name(found: Comparison) -> str:
    """A run in words."""
    draw = "greedy" if found.params.greedy else f"T {found.params.temperature:g}, seed {found.params.seed}"
    return f"{shape_name(found.shape)}, {draw}"


def difference_words(found: dict[str, Any]) -> str:
    """Where, and both tokens."""
    sides = []
    for name in ("plain", "speculative"):
        token = found[f"{name}_id"]
        sides.append(f"{name} " + ("had ended" if token is None else f"has {token} {found[f'{name}_text']!r}"))
    return f"token {found['position']}: {sides[0]}, {sides[1]}"
