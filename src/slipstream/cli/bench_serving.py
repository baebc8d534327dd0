"""`slipstream bench serving`: put any OpenAI-compatible server under load; a shape's own, to see what serving costs."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from slipstream.bench.report import environment
from slipstream.bench.serving.answer import Failure
from slipstream.bench.serving.bare import Subject, served_shape, with_bare
from slipstream.bench.serving.load import Level, Outcome
from slipstream.bench.serving.measure import Measured, Stage, Work, measure
from slipstream.bench.shapes import full_shape
from slipstream.cli.bench import print_rows, record
from slipstream.cli.door import KEY_VARIABLE, NEEDED_BY_LOAD, check_extra
from slipstream.cli.serving_options import AskOptions, LoadOptions, ShapeOptions
from slipstream.cli.serving_tables import print_serving
from slipstream.cli.spread import spread
from slipstream.telemetry.clock import Clock
from slipstream.telemetry.progress import progress

KEY_VARIABLES = (KEY_VARIABLE, "OPENAI_API_KEY")
SOME_FAILED = 1


@spread
def bench_serving(
    url: Annotated[str | None, typer.Option(help="The server, such as http://localhost:8000.")] = None,
    api_key: Annotated[str | None, typer.Option(help=f"Also ${', $'.join(KEY_VARIABLES)}.")] = None,
    details: Annotated[bool, typer.Option("--details", help="Each request's numbers too, in rows.")] = False,
    out: Annotated[Path | None, typer.Option(help="JSONL file to add the results to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows instead of a table.")] = False,
    *,
    asked: AskOptions,
    load: LoadOptions,
    own: ShapeOptions,
) -> None:
    """TTFT, TPOT, ITL, throughput and accept length of any OpenAI-compatible server; exit code 1 if requests failed."""
    check_extra("bench serving", NEEDED_BY_LOAD)
    if (url is None) == (own.shape is None):
        raise ValueError("name what is measured: either --url of a server, or --shape for one of random weights")
    levels = load.levels(asked.seed)
    subject = own.subject(asked, levels)
    if subject is not None:
        check_extra()
        asked = replace(asked, token_ids=full_shape(subject.shape).target.vocab_size)
    work = Work(
        url=url or "",
        key=chosen_key(api_key, own=subject is not None),
        model=asked.model,
        manner=asked.manner(),
        stages=stages(asked, levels, load.warmup),
        goals=load.goals(),
        detailed=details,
    )
    record(out)
    failures: list[Failure] = []

    def serve(at: str) -> list[dict[str, Any]]:
        measured = run(replace(work, url=at))
        failures.extend(failure for each in measured for failure in each.failures)
        return [{"bench": "serving", **asked.words(), **each.row, **_client()} for each in measured]

    rows = serve(work.url) if subject is None else own_rows(subject, serve, bare=own.bare is not False)
    record(out, *rows)
    print_rows(rows) if as_json else print_serving(rows)
    for sentence in told(failures):
        print(sentence, file=sys.stderr)
    if failures:
        raise typer.Exit(SOME_FAILED)


def chosen_key(given: str | None, *, own: bool) -> str | None:
    """What the server is shown; a server of our own wants none.

    Raises:
        ValueError: a key was given all the same.
    """
    if own and given is not None:
        raise ValueError("--api-key contradicts --shape, whose server wants none; leave it out")
    if own:
        return None
    return given or next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)


def stages(asked: AskOptions, levels: Sequence[Level], warmup: int) -> tuple[Stage, ...]:
    """What is asked at each level."""
    entries, found = asked.entries(), []
    for place, level in enumerate(levels):
        count = asked.count(entries, level)
        asks = asked.asks(entries, count + warmup, place)
        found.append(Stage(level=level, asks=tuple(asks[:count]), warmup=tuple(asks[count:])))
    return tuple(found)


def run(work: Work) -> list[Measured]:
    """Measure, with a bar on a terminal."""
    total = sum(len(stage.asks) for stage in work.stages)
    with progress("Serving", total, unit="requests") as meter:
        failed = 0

        def heard(stage: Stage, outcome: Outcome) -> None:
            nonlocal failed
            failed += isinstance(outcome, Failure)
            level = stage.level.max_concurrency
            words = f"concurrency {level or 'without limit'}" + (f", {failed} failed" if failed else "")
            meter.done(words)

        return asyncio.run(measure(work, Clock(), on_end=heard))


def own_rows(subject: Subject, serve: Callable[[str], list[dict[str, Any]]], *, bare: bool) -> list[dict[str, Any]]:
    """Start a shape's server and measure it; bare: with the same cycles without it beside."""

    def say(stage: str) -> None:
        print(stage, file=sys.stderr)

    def served() -> list[dict[str, Any]]:
        say(f"starting a server of {subject.shape} with random weights")
        with served_shape(subject) as url:
            return [{**row, **_subject_words(subject)} for row in serve(url)]

    return with_bare(subject, served, on_stage=say) if bare else served()


def told(failures: Sequence[Failure]) -> list[str]:
    """A sentence a reason: how many, and what was said the first time."""
    counts = Counter(each.reason for each in failures)
    firsts = {each.reason: each.sentence for each in reversed(failures)}
    return [f"{count} failed: {reason.value} ({firsts[reason]})" for reason, count in counts.items()]


def _subject_words(subject: Subject) -> dict[str, Any]:
    return {
        "model": subject.shape,
        "weights": "dummy",
        "steps": subject.steps,
        "tp": subject.tp,
        "decreed_accept_length": subject.accept_length,
    }


def _client() -> dict[str, Any]:
    """What the requests were sent with and by."""
    found = environment(torch.device("cpu"))
    kept = {name: found[name] for name in ("slipstream", "python", "date")}
    return {**kept, "client_hardware": found["hardware"]}
