"""`slipstream profile`: where a cycle's time goes, what verifying n tokens costs, and whether speculation pays."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.bench.delays import parse_delays
from slipstream.bench.profile import Profiled, ProfilePlan, Profiler
from slipstream.bench.profile_rows import Evidence, as_object
from slipstream.bench.report import environment
from slipstream.bench.trace import write_trace
from slipstream.cli.profile_models import Opened, open_subject
from slipstream.cli.profile_options import RealPrompts, Subject, Timing, decreed_lengths
from slipstream.cli.profile_tables import print_profile
from slipstream.cli.spread import spread
from slipstream.cli.writable import check_writable
from slipstream.flow.orders import SetDelay
from slipstream.serve.settle import dtype_name, settle_delay, settle_tp
from slipstream.telemetry.clock import Clock
from slipstream.telemetry.progress import progress

CPU_TIMES = "the host's clock at marks of the cycle and hooks of the models, rank 0"
GRAPH_TIMES = (
    "CUDA events on rank 0's stream, inside captured graphs as event nodes that each replay records again; the host's"
    " part by its own clock"
)
EVENT_TIMES = "CUDA events on rank 0's stream, nothing captured; the host's part by its own clock"
NO_COLLECTIVES = "one rank sends nothing"
WATCHED = {  # by kind of device
    "cpu": "the same clock around every collective of the same cycles; waiting for other ranks is included",
    "cuda": "events around every collective, in cycles of their own; waiting for other ranks is included",
}


@spread
def profile(
    subject: Subject,
    timing: Timing,
    real: RealPrompts,
    trace: Annotated[Path | None, typer.Option(help="Perfetto trace to write (ui.perfetto.dev).")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write, as --json prints it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON instead of tables.")] = False,
) -> None:
    """Split a cycle into its parts beside their floors: V(n), step(K), R, break-even, verdict, best changes."""
    subject.check()
    timing.speculation()
    parse_delays(timing.inject)
    ranks = settle_tp(subject.tp)
    delay_us = settle_delay(timing.inject_allreduce_us, ranks)
    for file in (trace, out):
        check_writable(file)
    opened = open_subject(subject, timing, real, ranks=ranks)
    try:
        plan = timing.plan(opened.draft, vocab_size=opened.vocab_size, ranks=ranks)
        opened.executor.order(SetDelay(microseconds=delay_us))
        found = _profiled(opened, plan)
        about = _about(opened, plan, ranks, delay_us)
    finally:
        opened.close()
    evidence = Evidence(plan=plan, found=found, accepted=opened.accepted, unmeasured=opened.unmeasured)
    told = as_object(evidence, about)
    if trace is not None:
        write_trace(trace, found.watched[-plan.cycles :], title=f"slipstream profile {opened.names['model']}")
    if out is not None:
        out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told)) if as_json else print_profile(told)


def _profiled(opened: Opened, plan: ProfilePlan) -> Profiled:
    with progress("Timing", plan.num_runs(opened.executor.rank.device.type), unit="runs") as meter:
        return Profiler(opened.executor, plan, clock=Clock(), on_run=meter.done).run()


def _about(opened: Opened, plan: ProfilePlan, ranks: int, delay_us: float) -> dict[str, Any]:
    """What was run, without what it gave."""
    device = opened.executor.rank.device
    captured = device.type == "cuda" and plan.graphs
    return {
        "bench": "profile",
        **opened.names,
        "tp": ranks,
        "draft_placement": str(plan.draft.placement),
        "dtype": dtype_name(opened.dtype),
        "device": device.type,
        "graphs": captured,
        "steps": plan.shape.steps,
        "topk": plan.shape.topk,
        "draft_tokens": plan.shape.draft_tokens,
        "batch": plan.batch,
        "context": plan.context,
        "acceptance_decreed": list(plan.acceptance),
        "decreed_accept_length": decreed_lengths(plan),
        "cycles_per_round": plan.cycles,
        "rounds": plan.rounds,
        "injected_ms": asdict(plan.delays),
        "injected_allreduce_us": delay_us,
        "time_source": GRAPH_TIMES if captured else EVENT_TIMES if device.type == "cuda" else CPU_TIMES,
        "communication_source": WATCHED[device.type] if ranks > 1 else NO_COLLECTIVES,
        **environment(device),
    }
