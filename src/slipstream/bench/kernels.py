"""`python -m slipstream.bench.kernels`: check and measure the Triton kernels on one CUDA device.

Rates first, then checks against the twins and of bits, then a first chain of products, attention, the search for
plans, and whole steps with what it found. Ends within --minutes; --small checks little shapes and times nothing, for
compute-sanitizer. Exit code 1 when a check failed.
"""

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from slipstream.bench.kernel_attention import HEADS, check_alike, check_random, check_turning, time_attention
from slipstream.bench.kernel_checks import FEW, PLANS, check_head, check_linears, check_norms, check_qkv, check_repeats
from slipstream.bench.kernel_step import (
    StepWeights,
    cublas_chain,
    decode_keys,
    draft_shapes,
    product_chain,
    random_weights,
    weight_shapes,
    whole_step,
)
from slipstream.bench.kernel_timing import Record, graph_ms, measure_rates
from slipstream.bench.kernel_tuning import brief, tune_shape
from slipstream.bench.shapes import FullShape, full_shape
from slipstream.kernels.plans import Plan, Workspace, default_plan, workspace
from slipstream.kernels.tuned import tuned_plans


def main(arguments: list[str] | None = None) -> int:
    """Run all parts that the time allows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="append measurements to this file, a line each")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--small", action="store_true", help="checks on little shapes only")
    parser.add_argument("--shape", default="llama-3.1-8b", help="what is timed and tuned, with its draft's products")
    parser.add_argument("--parts", default="checks,chain,attention,tune,steps", help="which parts to run")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("the kernels need a CUDA device; run this on a machine that has one", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    record = Record(path=options.json, stop_at=time.monotonic() + options.minutes * 60)
    space, parts = workspace(torch.device("cuda")), options.parts.split(",")
    if options.small or "checks" in parts:
        run_checks(record, space, small=options.small)
    if not options.small:
        record.attempt("rates", lambda: measure_rates(record))
        run_times(record, space, parts, full_shape(options.shape))
    print(f"{len(record.failed)} failed: {record.failed[:20]}")
    return 1 if record.failed else 0


def run_checks(record: Record, space: Workspace, *, small: bool) -> None:
    """Every kernel against its twin, and a row's bits."""
    spare = record.left() / 2  # of the time, for what is measured after
    few = {name: PLANS[name] for name in FEW}
    for shape, plans in {(192, 320): PLANS}.items() if small else {(960, 576): PLANS, (4096, 4096): few}.items():
        record.attempt(f"linears {shape}", lambda s=shape, p=plans: check_linears(record, space, s, p), least=spare)
    record.attempt("repeats", lambda: check_repeats(record, space), least=spare)
    for vocab, num_in in ((1000, 320),) if small else ((49_152, 576), (128_256, 4096)):
        record.attempt("head", lambda v=vocab, n=num_in: check_head(record, vocab=v, num_in=n), least=spare)
    for width in (320,) if small else (576, 4096):
        record.attempt("norms", lambda width=width: check_norms(record, width))
    for heads in HEADS[:2] if small else HEADS:
        record.attempt(
            f"qkv {heads}",
            lambda h=heads: check_qkv(record, num_heads=h[0], num_kv_heads=h[1], width=h[2]),
        )
        longest = 600 if small else 32_000
        record.attempt(f"attention {heads}", lambda h=heads, n=longest: check_random(record, h, longest=n), least=spare)
        for root in (120,) if small else (7, 250, 2040):
            record.attempt(f"alike {heads}", lambda h=heads, r=root: check_alike(record, h, root=r), least=spare)
            record.attempt(f"turning {heads}", lambda h=heads, r=root: check_turning(record, h, root=r), least=spare)


def run_times(record: Record, space: Workspace, parts: list[str], shape: FullShape) -> None:
    """Times, the most wanted first."""
    weights: list[StepWeights] = []
    model, known = shape.target, tuned_plans(torch.cuda.get_device_name())
    plans = {
        name: known.get((*size, name == "gate_up"), default_plan(*_outs(name, size)))
        for name, size in weight_shapes(model).items()
    }
    record.attempt("weights", lambda: weights.append(random_weights(model)))
    if "chain" in parts and weights:
        record.attempt("chain", lambda: time_chains(record, weights[0], plans, space))
    if "attention" in parts:
        record.attempt("attention times", lambda: time_attention(record, HEADS[0], small=False))
    if "tune" in parts:
        tune_all(record, shape, plans, space, seconds=record.left() * 0.8)
    if "steps" in parts and weights:
        record.attempt("steps", lambda: time_steps(record, weights[0], plans, space))


def _outs(name: str, size: tuple[int, int]) -> tuple[int, int]:
    return (size[0] // 2, size[1]) if name == "gate_up" else size


def time_chains(record: Record, weights: StepWeights, plans: dict[str, Plan], space: Workspace) -> None:
    """All products of one forward, by torch and by us."""
    for num_rows in (1, 4, 16, 64):
        record.rate(f"products, cuBLAS, {num_rows} rows", graph_ms(cublas_chain(weights, num_rows)), weights.num_bytes)
        for pdl in (False, True):
            ms = graph_ms(product_chain(weights, plans, space, num_rows, pdl=pdl))
            record.rate(f"products, ours{' pdl' if pdl else ''}, {num_rows} rows", ms, weights.num_bytes)


def time_steps(record: Record, weights: StepWeights, plans: dict[str, Plan], space: Workspace) -> None:
    """Whole forwards: decode, and verify of a chain."""
    name = f"{weights.model.hidden_size}-wide step"
    for context, num_sequences, num_rows in (
        (128, 1, 1), (128, 1, 4), (128, 1, 6), (128, 4, 4), (128, 16, 1), (128, 16, 4), (2048, 1, 4), (16_000, 1, 4),
    ):  # fmt: skip
        keys = decode_keys(num_sequences, num_rows, context)
        for pdl in (False, True) if num_rows * num_sequences == 1 else (True,):
            ms = graph_ms(whole_step(weights, plans, space, keys, pdl=pdl))
            label = f"{name}{' pdl' if pdl else ''}, {num_sequences} x {num_rows} rows, context {context}"
            record.rate(label, ms, weights.num_bytes)


def tune_all(
    record: Record, shape: FullShape, plans: dict[str, Plan], space: Workspace, *, seconds: float
) -> None:  # fmt: skip
    """A plan for every product of a model and of its draft, as lines for kernels/tuned.py."""
    shapes = {**weight_shapes(shape.target), **draft_shapes(shape.draft)}
    found: dict[tuple[int, int, bool], tuple[str, Plan]] = {}
    for name, size in shapes.items():
        kind = name.removeprefix("draft ")

        def tune(name: str = name, size: tuple[int, int] = size, kind: str = kind) -> None:
            plan = tune_shape(record, kind, size, space, seconds=seconds / len(shapes))
            found[*size, kind == "gate_up"] = (name, plan)
            plans[name] = plan
            record.say(f"chosen for {name}: {brief(plan)}", what="chosen", name=name, plan=asdict(plan))

        if (*size, kind == "gate_up") not in found:
            record.attempt(f"tune {name}", tune)
    for key, (name, plan) in found.items():
        print(f"    {key}: {plan},  # {name}")


if __name__ == "__main__":
    sys.exit(main())
