"""Tables, sentences and JSON of `slipstream plan`: one dictionary feeds both."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from slipstream.cli.show import stdout_console, table
from slipstream.plan.cost import NAMES
from slipstream.plan.definitions import DEFINITIONS
from slipstream.plan.explain import Change, Verdict, all_reduce_us, fits, limits
from slipstream.plan.search import Question, Row, best, best_speculative, own_of
from slipstream.plan.spread import published

LEGEND = ("cycle_ms", "ratio", "accept_length", "tokens_per_s", "speedup", "placement", "gain", "part")
ASKED = (1.0, 1.2, 1.5)


def as_json(question: Question, rows: Sequence[Row], said: Verdict, others: Sequence[Change]) -> dict[str, Any]:
    """All that is told, by name; every name has its definition in it."""
    top = best_speculative(rows)
    shape, machine = question.shape, question.machine
    told: dict[str, Any] = {
        "verdict": said.word,
        "sentence": said.sentence,
        "model": shape.name,
        "weight_bytes": round(shape.weight_bytes),
        "hardware": machine.name,
        "all_reduce": machine.state,
        "fits": fits(question),
        "draft": question.draft.kind.value,
        "draft_bits": question.draft.bits,
        "draft_step_bytes": round(question.draft.step_bytes),
        "batch": question.batch,
        "context": question.context,
        "topk": question.topk,
        "calibrated": question.measured is not None or question.plain_ms is not None,
        "acceptance": _source(question),
        "rows": [_row(row) for row in rows],
        "best": {"steps": best(rows).steps, "placement": str(best(rows).place)},
        "limits": {
            "steps": top.steps,
            "placement": str(top.place),
            "rows": [{"part": n, "ms": round(ms, 3), "share": round(ms / top.cycle.ms, 4)} for n, ms in limits(top)],
            "bytes_read": {part: round(value) for part, value in top.cycle.verify.bytes_read.items()},
            "num_all_reduces": top.cycle.verify.num_all_reduces,
            "all_reduce_us": round(all_reduce_us(question, top), 1),
        },
        "changes": [
            {"change": each.what, "gain": each.gain.as_row(), "best_steps": each.best.steps} for each in others
        ],
        "needed": _needed(rows),
        "parameters": _parameters(question),
        "interval": "80%",
    }
    return {**told, "definitions": dict(DEFINITIONS)}


def _row(row: Row) -> dict[str, Any]:
    return {
        "steps": row.steps,
        "placement": str(row.place) if row.steps else "none",
        "verified": row.rows,
        "cycle_ms": row.cycle_ms.as_row(),
        "verify_ms": round(row.cycle.verify.ms, 3),
        "draft_ms": round(row.cycle.draft_ms, 3),
        "host_ms": round(row.cycle.host_ms, 3),
        "ratio": row.ratio.as_row(),
        "accept_length": row.accept_length.as_row(),
        "tokens_per_s": row.tokens_per_s.as_row(),
        "speedup": row.speedup.as_row(),
    }


def _source(question: Question) -> str:
    acceptance = question.acceptance
    if acceptance.assumed:
        return f"usual for {question.draft.kind.value} drafts: conditional acceptance {acceptance.p:.2f}"
    if acceptance.by_position:
        return "by position: " + ", ".join(f"{each:g}" for each in acceptance.by_position)
    return f"given at {acceptance.at_steps} steps: constant conditional acceptance {acceptance.p:.3f}"


def _needed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for steps in sorted({row.steps for row in rows if row.steps}):
        ratio = min(row.ratio.middle for row in rows if row.steps == steps)
        lengths = [round(ratio * each, 3) for each in ASKED]
        found.append({"steps": steps, "break_even": lengths[0], "for_1_2x": lengths[1], "for_1_5x": lengths[2]})
    return found


def _parameters(question: Question) -> dict[str, float]:
    free = published().fitted.free
    found = {name: round(getattr(free, name), 4) for name in NAMES}
    own = own_of(question, free)
    return {**found, **{name: round(value, 4) for name, value in asdict(own).items()}}


def print_plan(told: Mapping[str, Any]) -> None:
    """Verdict first, then the evidence."""
    console = stdout_console()
    console.print(told["sentence"])
    state = f", all-reduce {told['all_reduce']}" if told["limits"]["num_all_reduces"] else ""
    calibrated = "calibrated with your own times" if told["calibrated"] else "from data sheets and published fits"
    console.print(
        f"{told['model']} ({told['weight_bytes'] / 1e9:.0f} GB) on {told['hardware']}{state}; {told['draft']} draft"
        f" ({told['draft_step_bytes'] / 1e9:.2f} GB a step); batch {told['batch']}, context {told['context']};"
        f" {calibrated}"
    )
    console.print(f"acceptance {told['acceptance']}")
    if not told["fits"]:
        console.print(
            "these weights and caches do not fit this memory; take more devices or fewer bits (--weight-bits)"
        )
    console.print()
    console.print(row_table(told))
    console.print()
    _print_limits(console, told)
    _print_changes(console, told)
    if told["acceptance"].startswith("usual"):
        _print_needed(console, told)
    console.print()
    for name in LEGEND:
        console.print(f"{name.replace('_', ' ')} = {told['definitions'][name]}")


def row_table(told: Mapping[str, Any]) -> Any:
    """A line a K and placement; the best is marked."""
    top = (told["best"]["steps"], told["best"]["placement"])
    lines = []
    for row in told["rows"]:
        mark = " *" if (row["steps"], row["placement"]) == top or row["steps"] == top[0] == 0 else ""
        where = f"{row['steps']}  {row['placement'] if row['steps'] else 'plain decoding'}{mark}"
        lines.append([where, *(_span(row[name], digits) for name, digits in COLUMNS.values())])
    return table(("K  placement", *COLUMNS), lines)


COLUMNS = {
    "cycle ms": ("cycle_ms", 2),
    "R = break-even": ("ratio", 2),
    "accept length": ("accept_length", 2),
    "tok/s": ("tokens_per_s", 0),
    "speed-up": ("speedup", 2),
}


def _span(values: Sequence[float], digits: int) -> str:
    middle, low, high = values
    if low == high:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def _print_limits(console: Any, told: Mapping[str, Any]) -> None:
    limits = told["limits"]
    parts = ", ".join(f"{row['part']} {row['ms']:.2f} ms ({row['share']:.0%})" for row in limits["rows"])
    console.print(f"what limits K = {limits['steps']}, {limits['placement']}: {parts}")
    read = ", ".join(f"{part} {value / 1e9:.2f}" for part, value in limits["bytes_read"].items() if value)
    console.print(f"GB that verify reads on each device: {read}")
    if limits["num_all_reduces"]:
        console.print(f"{limits['num_all_reduces']} all-reduces a forward, {limits['all_reduce_us']:g} us each")


def _print_changes(console: Any, told: Mapping[str, Any]) -> None:
    if not told["changes"]:
        return
    console.print("\nwhat would change it (best row of each, tokens a second beside the best row now)")
    lines = [
        [each["change"], "{:+.0%} ({:+.0%} to {:+.0%})".format(*each["gain"]), str(each["best_steps"])]
        for each in told["changes"]
    ]
    console.print(table(("change", "gain", "best K"), lines))


def _print_needed(console: Any, told: Mapping[str, Any]) -> None:
    console.print("\naccept length that is needed")
    lines = [
        [str(each["steps"]), *(f"{each[name]:.2f}" for name in ("break_even", "for_1_2x", "for_1_5x"))]
        for each in told["needed"]
    ]
    console.print(table(("K", "1.0x (break-even)", "1.2x", "1.5x"), lines))


def print_example(told: Mapping[str, Any]) -> None:
    """The founding case."""
    console = stdout_console()
    seen = told["published"]
    console.print(
        f"INCONCLUSIVE: two readings explain {seen['plain']:g} tok/s plain, {seen['K = 5']:g} at K = 5 and"
        f" {seen['K = 2']:g} at K = 2 with verify at {seen['verify ms, lowest']:g}-{seen['verify ms, highest']:g} ms;"
        f" one measurement tells them apart"
    )
    console.print(f"accept length {told['accept_length']} at K = 5, constant conditional acceptance\n")
    readings = told["readings"]
    for each in readings:
        console.print(f"{each['name']}: {each['says']}; V(n) = {each['forward']} ms")
    console.print()
    rows = list(readings[0]["verify_curve"])
    lines = [[each["name"], *(f"{each['verify_curve'][n]:.1f}" for n in rows)] for each in readings]
    console.print(table(("V(n) ms, NCCL tuned", *(f"n = {n}" for n in rows)), lines))
    console.print()
    steps = list(dict.fromkeys(k for each in readings for k in each["by_steps"]))
    lines = [[each["name"], *(f"{each['by_steps'].get(k, float('nan')):.1f}" for k in steps)] for each in readings]
    console.print(
        table(("tok/s", *(f"K = {k}" for k in steps)), [[x.replace("nan", "-") for x in row] for row in lines])
    )
    console.print()
    console.print(f"measure: {told['measurement']}")
    console.print()
    for name in ("forward", "by_steps", "first_row_ms", "rise_per_row_ms", "accept_length"):
        console.print(f"{name.replace('_', ' ')} = {DEFINITIONS[name]}")
