"""Published speed-ups and forward times as a planner reads them: the columns that a user would know, and nothing else.

Of a row only these are inputs: hardware, n_gpus, interconnect, model, its sizes, weight_bits, draft, batch_size,
num_steps, topk, num_draft_tokens and, where stated, accept_len. Ids, sources and remarks decide nothing; a source only
says which rows are left out together. Two values stand among the remarks because a range does not fit a number's
column ("accept_len as published: 2.1-2.4"); they are read as their middle.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.plan.drafts import Draft, draft_for
from slipstream.plan.hardware import Machine, build, find_device
from slipstream.plan.models import Shape, find_model, from_sizes, with_bits

USUAL_DEVICE = "h100"  # stands for a device that nobody stated
USUAL_STEPS = 3  # the commonest depth
ROOM = 1.4  # memory for weights, their cache and the rest, beside weights alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One published speed-up with what was known before it was measured."""

    id: str
    source: str  # rows of one source are left out together
    shape: Shape
    machine: Machine
    draft: Draft
    batch: int
    steps: int
    topk: int
    rows: int  # verified a request: draft tokens and the root
    accept_length: float | None
    speedup: float
    baseline: float | None  # as published; its unit differs (a user, a GPU, all of them), so nothing predicts from it
    assumed: tuple[str, ...] = ()  # what the row did not state


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A row that cannot be used, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One measured time of a forward or a cycle."""

    source: str
    curve: str  # source, model, quantity
    shape: Shape | None
    machine: Machine
    draft: Draft | None
    tokens: int  # rows of the forward, over all requests
    requests: int
    rows: int  # of each request
    steps: int  # 0: no draft ran
    ms: float


def read_points(path: Path) -> tuple[list[Point], list[Excluded]]:
    """Read published_points.csv or a file of the same columns.

    Raises:
        ValueError: the file is missing or lacks a column.
    """
    points: list[Point] = []
    excluded: list[Excluded] = []
    for row in read_rows(path, needed=("id", "source", "model", "num_steps", "accept_len", "speedup")):
        found = read_point(row)
        if isinstance(found, Point):
            points.append(found)
        else:
            excluded.append(Excluded(id=row["id"], reason=found))
    broken = {_baseline_of(point) for point in points if point.accept_length and point.speedup > point.accept_length}
    kept = [point for point in points if _baseline_of(point) not in broken]
    reason = (
        "its plain run is broken: with it, some row gains more than its accept length, so a cycle beats a plain step"
    )
    excluded += [Excluded(id=point.id, reason=reason) for point in points if _baseline_of(point) in broken]
    return kept, excluded


def _baseline_of(point: Point) -> tuple[str, str, int, float | str]:
    """Rows that were divided by one plain run; a row without its speed stands alone."""
    return point.source, point.shape.name, point.batch, point.baseline or point.id


def read_rows(path: Path, *, needed: Sequence[str]) -> list[dict[str, str]]:
    """Rows of a CSV file by column.

    Raises:
        ValueError: the file is missing or lacks a column.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [each for each in needed if each not in (reader.fieldnames or ())]
            if missing:
                raise ValueError(f"{path} lacks the column {', '.join(missing)}")
            return [{key: (value or "").strip() for key, value in row.items() if key} for row in reader]
    except (FileNotFoundError, IsADirectoryError):
        raise ValueError(f"there is no file {path}") from None


def read_point(row: Mapping[str, str]) -> Point | str:
    """A point, or why the row is none."""
    speedup = speedup_of(row)
    if speedup is None:
        return "no speed-up is published, nor both of its speeds"
    shape = shape_of(row)
    if shape is None:
        return "the model's shape is not known and its sizes are not stated"
    batch, steps, tokens = (_number(row, key) for key in ("batch_size", "num_steps", "num_draft_tokens"))
    topk = int(_number(row, "topk") or 1)
    if batch is None:
        return "the batch is not stated"
    draft = draft_for(shape, row.get("draft", ""))
    accept = _number(row, "accept_len") or _ranged(row, "accept_len")
    assumed = [] if find_device(row.get("hardware", "")) else ["hardware"]
    if steps is None:
        assumed.append("steps")
        steps = tokens - 1 if tokens and topk == 1 else usual_steps(accept)
    rows = int(tokens) if tokens else int(steps) + 1 if topk == 1 else int(steps) * topk + 1
    if accept is None:
        assumed.append("accept length")
    return Point(
        id=row["id"],
        source=source_of(row["source"]),
        shape=shape,
        machine=machine_of(row, shape),
        draft=draft,
        batch=int(batch),
        steps=int(steps),
        topk=topk,
        rows=rows,
        accept_length=accept,
        speedup=speedup,
        baseline=_number(row, "baseline_tok_s"),
        assumed=tuple(assumed),
    )


def usual_steps(accept_length: float | None) -> int:
    """Steps where none are stated: the commonest depth, or deep enough for the accept length that was seen."""
    return USUAL_STEPS if accept_length is None else max(USUAL_STEPS, round(1.3 * accept_length))


def speedup_of(row: Mapping[str, str]) -> float | None:
    """Speculative over plain speed, as published or from both speeds."""
    found = _number(row, "speedup") or _ranged(row, "speedup")
    plain, speculative = _number(row, "baseline_tok_s"), _number(row, "spec_tok_s")
    return found or (speculative / plain if plain and speculative else None)


def shape_of(row: Mapping[str, str]) -> Shape | None:
    """The model's shape by name, or a likely one of its sizes."""
    named = find_model(row["model"])
    total = _number(row, "total_params_b")
    if named is None and total:
        named = from_sizes(row["model"], total, _number(row, "active_params_b"))
    if named is None:
        return None
    bits = _number(row, "weight_bits")
    return with_bits(named, bits) if bits else fitted(named, _memory(row))


def fitted(shape: Shape, memory_bytes: float) -> Shape:
    """The widest weights that a memory holds, no wider than the model is usually served in."""
    if shape.weight_bytes * ROOM <= memory_bytes:
        return shape
    for bits in (8.0, 4.5):
        narrow = with_bits(shape, bits)
        if narrow.weight_bytes * ROOM <= memory_bytes:
            return narrow
    return with_bits(shape, 4.5)


def _memory(row: Mapping[str, str]) -> float:
    key, count = find_device(f"{row.get('hardware', '')}"), _number(row, "n_gpus")
    return build(key or USUAL_DEVICE, 1).device.memory_bytes * (count or (8 if key is None else 1))


def machine_of(row: Mapping[str, str], shape: Shape) -> Machine:
    """The machine as stated; a common device, as many as the weights need, for what is not."""
    text = f"{row.get('hardware', '')} {row.get('interconnect', '')}"
    key = find_device(text)
    stated = _number(row, "n_gpus")
    usual = build(key or USUAL_DEVICE, 1)
    count = int(stated) if stated else devices_needed(shape, usual.device.memory_bytes)
    found = build(key or USUAL_DEVICE, count, link=row.get("interconnect", ""))
    return found if key else replace(found, assumed=True)


def devices_needed(shape: Shape, memory_bytes: float) -> int:
    """The smallest power of two that holds the weights."""
    count = 1
    while count < 16 and shape.weight_bytes * ROOM > count * memory_bytes:
        count *= 2
    return count


def source_of(text: str) -> str:
    """What is left out together: a repository (forks of one name are one), or an issue of it."""
    words = re.sub(r"^(github|gist|HF)\s+", "", text)
    found = re.match(r"([\w.-]+)/([\w.-]+)(?:\s*(?:PR)?#(\d+))?", words)
    if found is None:
        return re.split(r"[,(]", words)[0].strip().lower()
    return f"{found[2]}#{found[3]}".lower() if found[3] else found[2].lower()


def read_curves(path: Path) -> list[CurvePoint]:
    """Read cost_curves.csv or a file of the same columns."""
    columns = ("source", "hardware", "model", "quantity", "tokens_in_forward", "ms")
    return [read_curve_point(row) for row in read_rows(path, needed=columns)]


def read_curve_point(row: Mapping[str, str]) -> CurvePoint:
    """One time. A cycle of one request verifies K + 1 tokens; of several, k=3, four rows each."""
    quantity = row["quantity"]
    shape = find_model(row["model"])
    tokens = int(float(row["tokens_in_forward"]))
    counted = re.match(r"\s*(\d+) ?x ", row["hardware"])
    fields = {"hardware": row["hardware"], "interconnect": row["hardware"], "n_gpus": counted[1] if counted else "1"}
    if shape is not None:
        shape = with_bits(shape, _stated_bits(row["model"]))
    steps, requests, rows = 0, 1, tokens
    if "decode step (batch" in quantity:
        requests, rows = tokens, 1
    elif "k=3" in quantity:
        steps, requests, rows = 3, tokens // 4, 4
    elif "cycle" in quantity or "round" in quantity:
        steps = tokens - 1
    draft = draft_for(shape, _draft_words(quantity)) if shape and steps else None
    return CurvePoint(
        source=source_of(row["source"]),
        curve=f"{row['source']} | {row['model']} | {quantity}",
        shape=shape,
        machine=machine_of(fields, shape or from_sizes("unknown", 8, 8)),
        draft=draft,
        tokens=tokens,
        requests=requests,
        rows=rows,
        steps=steps,
        ms=float(row["ms"]),
    )


def _draft_words(quantity: str) -> str:
    return "MTP" if "spec cycle, batch 1" in quantity else quantity


def _stated_bits(model: str) -> float | None:
    found = re.search(r"\b(FP4|INT4|FP8|bf16|IQ1)", model)
    return {"FP4": 4.5, "INT4": 4.5, "FP8": 8.0, "bf16": 16.0, "IQ1": 2.0}[found[1]] if found else None


def _number(row: Mapping[str, str], key: str) -> float | None:
    try:
        value = float(row.get(key) or "nan")
    except ValueError:
        return None
    return value if value == value and value > 0 else None


def _ranged(row: Mapping[str, str], key: str) -> float | None:
    """A column's value that is a range, kept among the remarks: its middle."""
    text = (
        row.get(key) or (re.findall(rf"{key} as published: ([\d.]+(?:[-/][\d.]+)*)", row.get("notes", "")) or [""])[0]
    )
    values = [float(each) for each in re.findall(r"\d+(?:\.\d+)?", text)]
    return sum(values) / len(values) if values else None
