"""One rank of test_groups.py: every check is a function that returns how many elements were wrong, or a number.

Ranks come from the environment; rank R writes OUT/R.json. Shape letters: N elements.
"""

import json
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from slipstream.kernels.norms import add_squares
from slipstream.kernels.push import push_add_squares
from slipstream.parallel.choose import AllReducePath, MeasuredGroup, choose_group
from slipstream.parallel.cut import shard_of
from slipstream.parallel.distributed import RankGroup, SumOrder, rank_group
from slipstream.parallel.instrument import InstrumentedGroup, open_wire
from slipstream.parallel.symmetric import SymmetricReducer
from slipstream.parallel.timing import captured, time_calls
from slipstream.verify.shards import best_of

BUFFER_BYTES = 1 << 20
SIZES = (
    1,
    7,
    8,
    576,
    4096,
    8191,
    16384,
    65536,
    262_144,
    300_000,
    1_300_001,
)  # elements; the last need two pieces or more
IN_A_GRAPH, REPLAYS = 100, 20
SPIN_CYCLES = 20_000  # about 10 us: the ranks arrive at different times
DELAY_US = 50.0

Sum = Callable[[Tensor], Tensor]


def pattern(rank: Tensor | int, turn: Tensor | int, size: int, device: torch.device) -> Tensor:
    """A rank's share of a turn in bf16, small enough that sums over eight ranks are exact."""
    return ((torch.arange(size, device=device) * 37 + turn * 11 + rank * 101) % 31 - 15).to(torch.bfloat16)


def expected(turn: Tensor | int, num_ranks: int, size: int, device: torch.device) -> Tensor:
    """The sum, which every rank can tell by itself, in fp32."""
    return torch.stack([pattern(rank, turn, size, device).float() for rank in range(num_ranks)]).sum(0)


def replay(run: Callable[[], None], times: int = REPLAYS) -> None:
    """Capture, replay without a pause, and wait."""
    graph = captured(run)
    for _ in range(times):
        graph.replay()
    torch.cuda.synchronize()


def many_in_graphs(sum_up: Sum, group: RankGroup, device: torch.device) -> float:
    """2,000 all-reduces of changing sizes and values without a pause; one rank after the other is late."""
    turn, wrong = torch.zeros((), dtype=torch.int64, device=device), torch.zeros((), dtype=torch.int64, device=device)

    def run() -> None:
        for call in range(IN_A_GRAPH):
            size = SIZES[call * 7 % len(SIZES)]
            mine = pattern(group.rank, turn + call, size, device)
            if call % group.size == group.rank:
                torch.cuda._sleep(SPIN_CYCLES)
            wrong.add_((sum_up(mine).float() != expected(turn + call, group.size, size, device)).sum())
        turn.add_(IN_A_GRAPH)

    replay(run)
    return wrong.item()


def back_to_back(sum_up: Sum, group: RankGroup, device: torch.device) -> float:
    """All-reduces with nothing between them, so that one may overtake another if it can."""
    inputs = [pattern(group.rank, call, SIZES[call % len(SIZES)], device) for call in range(2 * IN_A_GRAPH)]
    sums: list[Tensor] = []

    def run() -> None:
        sums[:] = [sum_up(mine.clone()) for mine in inputs]

    replay(run, REPLAYS // 2)
    turns = enumerate(sums)
    return sum((x.float() != expected(turn, group.size, len(x), device)).sum().item() for turn, x in turns)


def eager(sum_up: Sum, group: RankGroup, device: torch.device) -> float:
    """Outside graphs, in bf16 and fp32, at every size."""
    wrong = 0.0
    for dtype in (torch.bfloat16, torch.float32):
        for turn, size in enumerate(SIZES):
            total = sum_up(pattern(group.rank, turn, size, device).to(dtype))
            assert (total.dtype, total.shape) == (dtype, (size,))
            wrong += (total.float() != expected(turn, group.size, size, device)).sum().item()
    return wrong


def order(reducer: SymmetricReducer, group: RankGroup, device: torch.device) -> float:
    """Sums whose bits depend on the order: shared memory adds as the gathered sum in rank order does."""
    gathered = RankGroup(group.process_group, order=SumOrder.RANKS)
    generator = torch.Generator(device).manual_seed(group.rank)
    wrong = 0.0
    for dtype in (torch.bfloat16, torch.float32):
        for size in SIZES:
            mine = torch.randn(size, generator=generator, device=device).to(dtype)
            right = gathered.all_reduce(mine, "sum in rank order")
            for path in (reducer.one_shot, reducer.two_shot, *([reducer.push] * (dtype == reducer.mail.dtype))):
                wrong += (path(mine) != right).sum().item()
    return wrong


def fused(reducer: SymmetricReducer, group: RankGroup, device: torch.device) -> float:
    """A pushed sum with its residual and sums of squares has the bits of the three one after the other."""
    generator, wrong = torch.Generator(device).manual_seed(group.rank), 0.0
    for num_rows in (1, 4, 24, 64):
        for width in (576, 4096):
            x, delta = (torch.randn(num_rows, width, device=device, generator=generator).bfloat16() for _ in range(2))
            weight = torch.randn(width, device=device).bfloat16()
            right = add_squares(x, weight, reducer.one_shot(delta))
            for mine, theirs in zip(push_add_squares(x, delta, weight, reducer.mail), right, strict=True):
                wrong += (mine != theirs).sum().item()
    return wrong


def words(group: MeasuredGroup, device: torch.device) -> float:
    """The best of all ranks and rank 0's words, 2,000 times with sums between; one rank after the other is late."""
    shard = shard_of(group.size * 1000, group)
    turn, wrong = torch.zeros((), dtype=torch.int64, device=device), torch.zeros((), dtype=torch.int64, device=device)
    columns = torch.arange(64, device=device)

    def score(rank: int, at: Tensor) -> Tensor:
        return ((columns * 37 + at * 11 + rank * 101) % 31 - 15).float()

    def run() -> None:
        for call in range(IN_A_GRAPH):
            at, num_rows = turn + call, (1, 4, 64)[call % 3]
            if call % group.size == group.rank:
                torch.cuda._sleep(SPIN_CYCLES)
            best = best_of(score(group.rank, at)[:num_rows], (columns + shard.first)[:num_rows], shard)
            scores = torch.stack([score(rank, at)[:num_rows] for rank in range(group.size)])
            wrong.add_((best != columns[:num_rows] + 1000 * scores.argmax(0)).sum())
            first = group.broadcast((columns + at + group.rank)[:num_rows].view(1, -1), "words")
            wrong.add_((first != (columns + at)[:num_rows]).sum())
            if call % 2:
                total = group.all_reduce(pattern(group.rank, at, 4096, device), "sum")
                wrong.add_((total.float() != expected(at, group.size, 4096, device)).sum())
        turn.add_(IN_A_GRAPH)

    replay(run)
    return wrong.item()


def gather_and_broadcast_in_a_graph(group: RankGroup, device: torch.device) -> float:
    """Integers, flags and hidden states, with values that change between replays."""
    wrong = 0.0
    for dtype in (torch.int64, torch.int32, torch.bool, torch.bfloat16, torch.float32):
        mine = torch.zeros(5, 3, dtype=dtype, device=device)
        out: list[Tensor] = []

        def run(mine: Tensor = mine, out: list[Tensor] = out) -> None:
            out[:] = [group.all_gather(mine, "gather"), group.broadcast(mine.clone(), "broadcast")]

        graph = captured(run)
        for turn in range(3):
            mine.fill_((group.rank + turn) % 2 if dtype is torch.bool else group.rank + turn)
            graph.replay()
            ranks = torch.arange(group.size, device=device) + turn
            right = (ranks % 2 if dtype is torch.bool else ranks).to(dtype)
            wrong += (out[0] != right[:, None, None]).sum().item() + (out[1] != right[0]).sum().item()
    return wrong


def other_dtypes(group: MeasuredGroup, device: torch.device) -> float:
    """What the shared-memory kernels cannot add goes another way."""
    wrong = 0.0
    for dtype in (torch.float16, torch.int64, torch.int32):
        total = group.all_reduce(torch.full((64, 3), group.rank + 1, dtype=dtype, device=device), "others")
        wrong += (total != group.size * (group.size + 1) // 2).sum().item()
    flags = torch.full((8,), group.rank == 0, device=device)
    return wrong + (~group.all_reduce(flags, "flags")).sum().item()


def in_inference_mode(sum_up: Sum, group: RankGroup, device: torch.device) -> float:
    with torch.inference_mode():
        total = sum_up(pattern(group.rank, 0, 4096, device))
    return (total.float() != expected(0, group.size, 4096, device)).sum().item()


def delay_us(group: MeasuredGroup, device: torch.device) -> float:
    """What a delay really adds to an all-reduce in a graph."""
    wire = open_wire(device)
    slow, x = InstrumentedGroup(group, wire, "target"), torch.zeros(4096, dtype=torch.bfloat16, device=device)
    without = time_calls(lambda: slow.all_reduce(x, "delayed"), device)
    wire.delay_us = DELAY_US
    return time_calls(lambda: slow.all_reduce(x, "delayed"), device) - without


def main(out: Path) -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    group = rank_group()
    sizes = [8192 * rows for rows in (1, 2, 4, 6, 16, 64, 512)]
    measured, report = choose_group(None, device, sizes=sizes, buffer_bytes=BUFFER_BYTES)
    assert isinstance(measured, MeasuredGroup), report.note
    reducer = measured.reducer
    assert all(a.num_bytes < b.num_bytes for a, b in pairwise(report.rows))
    sums: dict[str, Sum] = {
        AllReducePath.NCCL.value: lambda x: group.all_reduce(x, "test"),
        AllReducePath.ONE_SHOT.value: reducer.one_shot,
        AllReducePath.TWO_SHOT.value: reducer.two_shot,
        AllReducePath.PUSH.value: lambda x: (reducer.push if x.dtype == reducer.mail.dtype else reducer.one_shot)(x),
        "measured": lambda x: measured.all_reduce(x, "test"),
    }
    found: dict[str, object] = {"report": report.as_row(), "delay us": delay_us(measured, device)}
    for name, sum_up in sums.items():
        for check in (eager, many_in_graphs, back_to_back, in_inference_mode):
            found[f"{check.__name__} {name}"] = check(sum_up, group, device)
    found["order"] = order(reducer, group, device)
    found["words"] = words(measured, device)
    found["fused"] = fused(reducer, group, device)
    found["gather and broadcast"] = gather_and_broadcast_in_a_graph(group, device)
    found["other dtypes"] = other_dtypes(measured, device)
    (out / f"{group.rank}.json").write_text(json.dumps(found))
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
