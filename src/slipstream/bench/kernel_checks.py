"""Checks of the Triton kernels on a CUDA device: against their twins, and a row's bits against its companions.

Shape letters: T rows, D inputs, O outputs, V vocabulary, H heads, G kv heads, K head width.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from slipstream.bench.kernel_timing import Record
from slipstream.kernels.draws import Draws
from slipstream.kernels.head import choose_tokens
from slipstream.kernels.keys import Keys
from slipstream.kernels.norms import add_norm, add_squares
from slipstream.kernels.plans import NARROWEST, Plan, Workspace, default_plan
from slipstream.kernels.qkv import rotate_and_store
from slipstream.kernels.skinny import Ready, Rms, skinny_linear
from slipstream.kernels.twins import choose_twin, linear_twin, rotate_and_store_twin, squares_twin

ROW_COUNTS = (1, 2, 3, 4, 6, 7, 8, 16, 17, 33, 64, 65, 200, 600)
ALL_ROWS = ROW_COUNTS[-1]
EPS = 1e-5
COMPILERS = 12  # threads
FEW = ("64x128/2", "32x128", "64x128/2 tma")  # plans for large shapes
PLANS = {
    "64x128": Plan(block_out=64, block_in=128),
    "64x128/2": Plan(block_out=64, block_in=128, split=2),
    "64x64/4": Plan(block_out=64, block_in=64, split=4),
    "128x64/2": Plan(block_out=128, block_in=64, split=2),
    "32x128": Plan(block_out=32, block_in=128),
    "32x128/4": Plan(block_out=32, block_in=128, split=4),
    "64x128/2 tma": Plan(block_out=64, block_in=128, split=2, tma=True),
    "128x64 8 warps": Plan(block_out=128, block_in=64, warps=8),
}


def rows_of(num_rows: int, width: int, *, scale: float = 1.0) -> Tensor:
    """Random bf16 rows."""
    return (torch.randn(num_rows, width, device="cuda") * scale).bfloat16()


def error_of(found: Tensor, wanted: Tensor) -> float:
    """|found - wanted| / |wanted|, NaN if anything is."""
    return ((found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30)).item()  # sync: report


def expect(record: Record, name: str, error: float, most: float) -> None:
    """Say how far a result is off; NaN fails too."""
    good = error <= most
    record.say(f"{'ok  ' if good else 'BAD '} {name}: error {error:.2e}", what="check", name=name, error=error, ok=good)
    if not good:
        record.failed.append(name)


def check_linears(record: Record, space: Workspace, shape: tuple[int, int], plans: Mapping[str, Plan] = PLANS) -> None:
    """Products of one weight shape by several plans, fused and not, and their invariance; poisoned outputs."""
    num_out, num_in = shape
    w = rows_of(num_out, num_in, scale=num_in**-0.5)
    x, residual = rows_of(ALL_ROWS, num_in), rows_of(ALL_ROWS, num_out)
    weight, bias = 1 + rows_of(1, num_in, scale=0.1)[0], rows_of(1, num_out)[0]
    _, squares, scaled = add_squares(x, weight)
    after = 1 + rows_of(1, num_out, scale=0.1)[0]
    for name, plan in {"default": default_plan(num_out, num_in), **plans}.items():

        def plain(begin: int, end: int, plan: Plan = plan) -> Tensor:
            out = torch.full((end - begin, num_out), float("nan"), device="cuda", dtype=torch.bfloat16)
            return skinny_linear(x[begin:end], w, space=space, plan=plan, bias=bias, out=out)

        def fused(begin: int, end: int, plan: Plan = plan) -> Tensor:
            rms = Rms(squares=squares[begin:end], eps=EPS)
            sums = torch.full((end - begin, -(-num_out // plan.block_out)), float("nan"), device="cuda")
            ready = Ready(weight=after, squares=sums, scaled=torch.full_like(residual[begin:end], float("nan")))
            found = skinny_linear(
                scaled[begin:end],
                w,
                space=space,
                plan=plan,
                rms=rms,
                residual=residual[begin:end],
                ready=ready,
                pdl=True,
            )
            return torch.cat((found.float(), sums / plan.block_out, ready.scaled.float()), dim=1)

        def gated(begin: int, end: int, plan: Plan = plan) -> Tensor:
            rms = Rms(squares=squares[begin:end], eps=EPS)
            return skinny_linear(scaled[begin:end], w, space=space, plan=plan, rms=rms, gated=True)

        wide = [tensor.float() for tensor in (x, w)]
        total = linear_twin(x, w, norm=(weight, EPS), residual=residual)
        wanted = {
            plain: linear_twin(*wide, bias=bias.float()),
            fused: torch.cat(
                (total.float(), squares_twin(total, plan.block_out) / plan.block_out, (total * after).float()), dim=1
            ),
            gated: linear_twin(x, w, norm=(weight, EPS), gated=True),
        }
        if plan.block_out < NARROWEST:
            del wanted[fused]
        together = [(work, count) for work in wanted for count in (1, 17, 64, ALL_ROWS)]
        compile_together(lambda work, count: work(0, count), together)
        for work, twin in wanted.items():
            label = f"{num_out}x{num_in} {name} {work.__name__}"
            record.attempt(label, lambda work=work, twin=twin, label=label: check_rows(record, label, work, twin))


def compile_together(work: Callable[..., object], calls: Iterable[tuple[Any, ...]]) -> None:
    """Make these calls side by side, for what they compile; one that fails will fail again where it counts."""
    with ThreadPoolExecutor(COMPILERS) as pool:
        for future in [pool.submit(work, *call) for call in calls]:
            future.exception()
    torch.cuda.synchronize()


def check_rows(record: Record, name: str, work: Callable[[int, int], Tensor], twin: Tensor) -> None:
    """All rows against the twin, then fewer rows against all, bit by bit."""
    whole = work(0, ALL_ROWS)
    error = error_of(whole, twin)
    spans = [(0, count) for count in ROW_COUNTS] + [(8, 8 + count) for count in ROW_COUNTS[:-1]]
    changed = [(begin, end) for begin, end in spans if not torch.equal(work(begin, end), whole[begin:end])]
    good = error <= 1e-2 and not changed
    if not good:
        record.failed.append(name)
    text = f"BAD  {name}: error {error:.2e}, rows that change {changed}"
    values = {"what": "check", "name": name, "error": error, "changed": changed, "ok": good}
    if good:
        text = f"ok   {name}: error {error:.2e}, bits equal over {len(spans)} spans"
    record.say(text, **values)


def check_head(record: Record, *, vocab: int, num_in: int) -> None:
    """Tokens chosen in the head equal those chosen from its logits, noise included."""
    w, x = rows_of(vocab, num_in, scale=num_in**-0.5), rows_of(64, num_in)
    generator = torch.Generator("cuda").manual_seed(7)
    seeds = torch.randint(-(1 << 62), 1 << 62, (64,), device="cuda", generator=generator)
    positions = torch.randint(0, 1 << 20, (64,), device="cuda", generator=generator)
    temperatures = torch.rand(64, device="cuda", generator=generator) * 1.5
    temperatures[::3] = 0
    for count in (1, 7, 64):
        logits = torch.full((count, vocab), float("nan"), device="cuda", dtype=torch.bfloat16)
        draws = Draws(temperatures=temperatures[:count], seeds=seeds[:count], positions=positions[:count], first_id=128)
        choice = choose_tokens(x[:count], w, draws=draws, logits=logits)
        scores = choose_twin(logits, draws.temperatures, draws.seeds, draws.positions, first_id=128)
        wrong = (choice.ids != scores.argmax(-1)).sum().item()  # sync: report
        off = (choice.values != scores.amax(-1)).sum().item()  # sync: report
        expect(record, f"head {vocab}x{num_in}, {count} rows: ids that differ", wrong, 0)
        expect(record, f"head {vocab}x{num_in}, {count} rows: noise bits that differ", off, 0)
        error = error_of(logits, x[:count].float() @ w.float().T)
        expect(record, f"head {vocab}x{num_in}, {count} rows: logits", error, 1e-2)


def check_norms(record: Record, width: int) -> None:
    """The norm with its residual."""
    x, delta, weight = rows_of(17, width), rows_of(17, width), 1 + rows_of(1, width, scale=0.1)[0]
    total, normed = add_norm(x, delta, weight, eps=EPS)
    expect(record, f"add_norm {width}: sum", error_of(total, x + delta), 0)
    twin = torch.nn.functional.rms_norm(x + delta, (width,), weight, EPS)
    expect(record, f"add_norm {width}: norm", error_of(normed, twin), 1e-2)
    _, squares, scaled = add_squares(x, weight, delta)
    expect(record, f"add_squares {width}", error_of(squares, squares_twin(x + delta, width)), 1e-5)
    expect(record, f"add_squares {width}: scaled", error_of(scaled, (x + delta) * weight), 1e-2)


def check_qkv(record: Record, *, num_heads: int, num_kv_heads: int, width: int) -> None:
    """RoPE, head norms and the store."""
    qkv = rows_of(19, (num_heads + 2 * num_kv_heads) * width)
    tables = (torch.randn(512, width // 2, device="cuda"), torch.randn(512, width // 2, device="cuda"))
    positions, slots = torch.randint(0, 600, (19,), device="cuda"), torch.randperm(256, device="cuda")[:19]
    norms = (1 + rows_of(1, width, scale=0.1)[0], 1 + rows_of(1, width, scale=0.1)[0])
    for each in (None, norms):
        pools = [
            [torch.zeros(256, num_kv_heads, width, device="cuda", dtype=torch.bfloat16) for _ in "kv"] for _ in "ab"
        ]
        keys = Keys(pages=slots[:, None], page=1, newest=positions[:, None], most=600, writes=0 * slots[:, None])
        options = {"num_heads": num_heads, "norms_K": each, "eps": EPS}
        found = rotate_and_store(qkv, keys, tables, (pools[0][0], pools[0][1]), **options)
        wanted = rotate_and_store_twin(qkv, positions, slots, tables, (pools[1][0], pools[1][1]), **options)
        name = f"qkv {num_heads}/{num_kv_heads}x{width} {'with norms' if each else 'plain'}"
        expect(record, f"{name}: queries", error_of(found, wanted), 1e-2)
        expect(record, f"{name}: keys", error_of(pools[0][0], pools[1][0]), 1e-2)
        expect(record, f"{name}: values", error_of(pools[0][1], pools[1][1]), 0)


def check_repeats(record: Record, space: Workspace) -> None:
    """The same split product a thousand times, two shapes in turn: a race would show as bits that move."""
    plan = Plan(block_out=64, block_in=64, split=4)
    weights = [rows_of(1024, 2048, scale=0.02), rows_of(2048, 1024, scale=0.02)]
    x, results = rows_of(6, 2048), []
    for _ in range(1000):
        middle = skinny_linear(x, weights[0], space=space, plan=plan, pdl=True)
        results.append(skinny_linear(middle, weights[1], space=space, plan=plan, pdl=True))
    changed = sum(not torch.equal(a, b) for a, b in pairwise(results))
    expect(record, "1000 repeats of two split products: results that move", changed, 0)
