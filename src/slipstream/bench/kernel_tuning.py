"""The search for a plan of each weight shape: a bounded list of cuts, then depth and warps of the best.

The split decides bits, so a shape gets one plan for every row count: the one with the lowest time at 4 rows.
"""

import statistics
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from slipstream.bench.kernel_checks import compile_together, rows_of
from slipstream.bench.kernel_timing import Record, graph_ms
from slipstream.kernels.head import choose_tokens
from slipstream.kernels.plans import Plan, Workspace, default_plan
from slipstream.kernels.skinny import skinny_linear

TUNED_ROWS = 4
FEWEST_PROGRAMS, MOST_PROGRAMS = 96, 1500
SHARED_BYTES = 220 << 10
BYTES_PER_SET = 400 << 20  # weights in rotation: several times the L2


def candidates(num_out: int, num_in: int, *, kind: str) -> list[Plan]:
    """Cuts that keep a large GPU busy, as far as the shape goes: enough programs, a deep enough pipeline that fits."""
    outs = num_out // 2 if kind == "gate_up" else num_out
    small = -(-outs // 64) * max(1, num_in // 256) < 2 * FEWEST_PROGRAMS
    found: list[Plan] = []
    for block_out, block_in in ((64, 128), (64, 64), (128, 64), (128, 128), *(((64, 256),) if small else ())):
        for split in (1, 2, 3, 4, 6, 8, 12) if kind != "head" else (1,):
            steps = -(-num_in // block_in)
            programs = -(-outs // block_out) * split
            if steps % split or (split > 1 and not small and split not in (2, 4, 8)):
                continue
            if not small and (steps // split < 2 or (programs < FEWEST_PROGRAMS and split < 8)):
                continue
            if programs > MOST_PROGRAMS and split > 1:
                continue
            stage = (block_out * (2 if kind == "gate_up" else 1) + 16) * block_in * 2
            stages = max(2, min(6, (96 << 10) // stage))
            found += [
                Plan(block_out=block_out, block_in=block_in, split=split, stages=stages, tma=t) for t in (False, True)
            ]
    return found


def variations(plan: Plan, *, kind: str) -> list[Plan]:
    """Depths and warps of one cut; all of them keep its bits."""
    stage = (plan.block_out * (2 if kind == "gate_up" else 1) + 16) * plan.block_in * 2
    depths = [
        plan.stages + more
        for more in (-1, 1, 2)
        if plan.stages + more >= 2 and (plan.stages + more) * stage <= SHARED_BYTES
    ]
    deeper = [replace(plan, stages=depth) for depth in depths]
    return [*deeper, replace(plan, warps=8 if plan.warps == 4 else 4)]


def tune_shape(record: Record, kind: str, shape: tuple[int, int], space: Workspace, *, seconds: float) -> Plan:
    """The best plan found for one weight shape within some seconds."""
    until = record.left() - seconds
    num_sets = max(2, min(32, BYTES_PER_SET // (shape[0] * shape[1] * 2)))
    weights = [rows_of(1, shape[0] * shape[1], scale=shape[1] ** -0.5).view(shape) for _ in range(num_sets)]
    times: dict[Plan, float] = {}
    x = rows_of(TUNED_ROWS, shape[1])

    def measure(plans: Iterable[Plan]) -> None:
        fresh = [plan for plan in plans if plan not in times]
        compile_together(lambda plan: run(kind, weights[:1], plan, space, x), [(plan,) for plan in fresh])
        for plan in fresh:
            if record.left() < until and times:
                return
            try:
                times[plan] = graph_ms(lambda p=plan: run(kind, weights, p, space, x), replays=5) / num_sets
            except Exception as error:
                record.say(f"  {kind} {brief(plan)}: {str(error)[:100]}", what="plan failed", plan=str(plan))

    measure([default_plan(shape[0] // (2 if kind == "gate_up" else 1), shape[1])])
    measure(candidates(*shape, kind=kind))
    best = sorted(times, key=times.__getitem__)[:3]
    measure([more for plan in best for more in variations(plan, kind=kind)])
    best = sorted(times, key=times.__getitem__)
    num_bytes = shape[0] * shape[1] * 2
    for plan in best[:4]:
        record.rate(f"{kind} {shape[0]}x{shape[1]} {brief(plan)}", times[plan], num_bytes, plan=str(plan))
    for plan in best[4:]:
        record.keep(what="plan", kind=kind, shape=shape, ms=times[plan], plan=str(plan))
    report_rows(record, kind, weights, best[0], space)
    return best[0]


def run(kind: str, weights: list[Tensor], plan: Plan, space: Workspace, x: Tensor) -> None:
    """One pass over the weights."""
    for w in weights:
        if kind == "head":
            choose_tokens(x, w, plan=plan, pdl=True)
        else:
            skinny_linear(x, w, space=space, plan=plan, gated=kind == "gate_up", pdl=True)


def report_rows(record: Record, kind: str, weights: list[Tensor], plan: Plan, space: Workspace) -> None:
    """The chosen plan over row counts, beside torch's product in the same run."""
    for num_rows in (1, 4, 8, 16, 17, 64):
        x = rows_of(num_rows, weights[0].shape[1])
        ours = graph_ms(lambda x=x: run(kind, weights, plan, space, x)) / len(weights)
        theirs = statistics.median(
            graph_ms(lambda x=x: [torch.nn.functional.linear(x, w) for w in weights]) for _ in range(2)
        ) / len(weights)  # fmt: skip
        name = f"  {kind} {num_rows} rows (cuBLAS {theirs:.4f} ms)"
        record.rate(name, ours, weights[0].nbytes, kind=kind, rows=num_rows, cublas_ms=theirs, plan=str(plan))


def brief(plan: Plan) -> str:
    """A plan in a few letters."""
    tma = " tma" if plan.tma else ""
    return f"{plan.block_out}x{plan.block_in}/{plan.split} s{plan.stages} w{plan.warps}{tma}"
