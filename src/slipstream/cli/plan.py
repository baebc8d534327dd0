"""`slipstream plan`: would speculation pay on hardware that one does not have? Arithmetic only; torch is not loaded."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.cli.plan_tables import as_json, print_example, print_plan
from slipstream.plan.accept import check_positions, constant_p
from slipstream.plan.calibrate import Measured, profile_points, typed_points
from slipstream.plan.cost import Placed
from slipstream.plan.definitions import DEFINITIONS
from slipstream.plan.drafts import Draft, DraftKind, make_draft
from slipstream.plan.example import NAME, worked
from slipstream.plan.explain import changes, verdict
from slipstream.plan.hardware import Machine, machine
from slipstream.plan.models import Shape, find_model, from_config, named_model, with_bits
from slipstream.plan.search import MAX_STEPS, Acceptance, Question, placements, search
from slipstream.plan.spread import Published, draws, published

KINDS = tuple(kind.value for kind in DraftKind if kind is not DraftKind.MODEL)


def plan(
    model: Annotated[str | None, typer.Option(help="A known model, a config.json or a folder that holds one.")] = None,
    hardware: Annotated[str | None, typer.Option(help="As 8x-rtx-pro-6000-pcie, 1x-h200, 8x-b200-nvlink.")] = None,
    accept: Annotated[
        str, typer.Option(help="Accept length @ steps it was seen at, as 2.1@5; or unknown.")
    ] = "unknown",
    accept_by_position: Annotated[
        str | None, typer.Option(help="P(position 1..i all accepted), as .645,.393,.240, instead of --accept.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Requests that decode together.")] = 1,
    context: Annotated[int, typer.Option(min=0, help="Tokens of each request in the cache.")] = 0,
    steps: Annotated[str, typer.Option(help="K to try, as 0,2,5 or 0-10.")] = f"0-{MAX_STEPS}",
    topk: Annotated[int, typer.Option(min=1, max=64, help="Branches a node; 1 is a chain.")] = 1,
    draft_tokens: Annotated[int | None, typer.Option(min=1, help="Nodes of a tree without the root.")] = None,
    draft: Annotated[str, typer.Option(help=f"Kind of draft: {', '.join(KINDS)}.")] = DraftKind.EAGLE3.value,
    draft_bits: Annotated[float | None, typer.Option(min=1, max=32, help="Bits of a draft's weight.")] = None,
    draft_tp: Annotated[str, typer.Option(help="Placements: all, replicated, or ranks, as 1,8.")] = "all",
    weight_bits: Annotated[float | None, typer.Option(min=1, max=32, help="Bits of a target's weight.")] = None,
    all_reduce: Annotated[str | None, typer.Option(help="tuned, untuned or one-shot.")] = None,
    hardware_file: Annotated[Path | None, typer.Option(help="TOML with devices of your own.")] = None,
    plain: Annotated[
        float | None, typer.Option(help="Plain decoding as you measured it, tok/s of all requests.")
    ] = None,
    calibrate: Annotated[Path | None, typer.Option(help="JSON of `slipstream profile`, to fit the forward to.")] = None,
    calibrate_points: Annotated[str | None, typer.Option(help="Or times V(n) in ms, as 1:10.9,4:16.5.")] = None,
    example: Annotated[str | None, typer.Option(help=f"Work a known case instead: {NAME}.")] = None,
    as_json_text: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Forecast a cycle on any hardware: R, speed-up with intervals, the best steps and placement, what would help."""
    if example is not None:
        _work(example, as_json_text, asked=model or hardware)
        return
    if model is None or hardware is None:
        raise ValueError(f"--model and --hardware say what to plan; or see a worked case with --example {NAME}")
    shape = with_bits(read_shape(model), weight_bits)
    joined = machine(hardware, file=hardware_file, state=all_reduce)
    if draft_tokens is not None and topk == 1:
        raise ValueError("--draft-tokens shapes a tree; a chain (--topk 1) has as many as it has steps")
    head = read_draft(shape, draft, draft_bits)
    known = published()
    question = Question(
        shape=shape,
        machine=joined,
        draft=head,
        acceptance=read_acceptance(accept, accept_by_position, head, known.usual),
        batch=batch,
        context=context,
        topk=topk,
        draft_tokens=draft_tokens,
        steps=read_steps(steps),
        places=read_places(draft_tp, joined),
        measured=read_measured(calibrate, calibrate_points, plain),
        plain_ms=read_plain(plain, batch),
    )
    told = forecast(question, known)
    if as_json_text:
        print(json.dumps(told, indent=1))
        return
    print_plan(told)


def forecast(question: Question, known: Published) -> dict[str, Any]:
    """All that is told of a question."""
    worlds = draws(known.fitted)
    rows = search(question, known, worlds)
    said = verdict(question, rows, stated=not question.acceptance.assumed)
    return as_json(question, rows, said, changes(question, known, worlds))


def _work(example: str, as_json_text: bool, *, asked: str | None) -> None:
    if example != NAME:
        raise ValueError(f"no worked case is called {example}; there is {NAME}")
    if asked is not None:
        raise ValueError(f"--example brings its own model and hardware, which {asked} contradicts; give one of them")
    told = {**worked()}
    if as_json_text:
        print(json.dumps({**told, "definitions": _defined(told)}, indent=1))
        return
    print_example(told)


def _defined(told: dict[str, object]) -> dict[str, str]:
    names = {*told, "definitions", "name", "says", "forward", "verify_curve", "by_steps"}
    names |= {"first_row_ms", "rise_per_row_ms"}
    return {name: DEFINITIONS[name] for name in DEFINITIONS if name in names}


def read_shape(model: str) -> Shape:
    """A known name, or the config.json that a path leads to.

    Raises:
        ValueError: neither.
    """
    path = Path(model)
    file = path / "config.json" if path.is_dir() else path
    if file.is_file():
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{file} is not JSON: {error}") from None
        if not isinstance(raw, dict):
            raise ValueError(f"{file} is no config.json of a model")
        return from_config(path.name if path.is_dir() else path.parent.name or path.name, raw)
    if path.is_dir():
        raise ValueError(f"{path} holds no config.json")
    return find_model(model) or named_model(model)


def read_draft(shape: Shape, kind: str, bits: float | None) -> Draft:
    """A draft of a kind, as wide as the target."""
    if kind not in KINDS:
        raise ValueError(f"--draft {kind}: kinds are {', '.join(KINDS)}")
    return make_draft(shape, DraftKind(kind), bits=bits or (shape.bits if kind == DraftKind.MTP else 16.0))


def read_acceptance(accept: str, by_position: str | None, draft: Draft, usual: dict[str, float]) -> Acceptance:
    """What is known of acceptance: 2.1@5, positions, or nothing."""
    if by_position is not None:
        if accept != "unknown":
            raise ValueError("--accept and --accept-by-position say the same thing; give one of them")
        reached = tuple(_float(each, "--accept-by-position", by_position) for each in by_position.split(","))
        check_positions(reached)
        return Acceptance(by_position=reached)
    if accept == "unknown":
        return Acceptance(p=usual.get(draft.kind.value, usual["other"]), assumed=True)
    length, at, steps = accept.partition("@")
    if not at or not steps.isdigit():
        raise ValueError(f"--accept is an accept length and the steps it was seen at, as 2.1@5, not {accept}")
    return Acceptance(p=constant_p(_float(length, "--accept", accept), int(steps)), at_steps=int(steps))


def read_steps(text: str) -> tuple[int, ...]:
    """`0,2,5` or `0-10`; plain decoding is always among them."""
    low, dash, high = text.partition("-")
    words = (
        [str(each) for each in range(int(low), int(high) + 1)] if dash and (low + high).isdigit() else text.split(",")
    )
    if not all(word.strip().isdigit() for word in words) or not words:
        raise ValueError(f"--steps is numbers with commas or a range, as 0,2,5 or 0-10, not {text}")
    found = sorted({0, *map(int, words)})
    if not 1 <= found[-1] <= 64:
        raise ValueError(f"--steps {text}: at least one K of 1 to 64 is needed to compare with plain decoding")
    return tuple(found)


def read_places(text: str, joined: Machine) -> tuple[Placed, ...]:
    """`all`, `replicated` or numbers of ranks that divide the devices."""
    if text == "all":
        return ()
    known = {str(each).removeprefix("tp "): each for each in placements(joined.count)}
    names = [each.strip() for each in text.split(",")]
    wrong = [each for each in names if each not in known]
    if wrong:
        raise ValueError(f"--draft-tp {text}: on {joined.name} there are all, {', '.join(known)}")
    return tuple(known[each] for each in names)


def read_measured(file: Path | None, points: str | None, plain: float | None) -> Measured | None:
    """Own times, from one of three options."""
    if sum(each is not None for each in (file, points, plain)) > 1:
        raise ValueError("--calibrate, --calibrate-points and --plain all set the forward's level; give one of them")
    if file is not None:
        return profile_points(file)
    return None if points is None else typed_points(points)


def read_plain(plain: float | None, batch: int) -> float | None:
    """Milliseconds of a plain step."""
    if plain is None:
        return None
    if not (plain > 0 and math.isfinite(plain)):
        raise ValueError(f"--plain {plain:g}: tokens a second are above zero")
    return 1e3 * batch / plain


def _float(text: str, option: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{option} {whole}: {text.strip() or 'nothing'} is no number")
    return value
