"""One rank of a measurement: time an all-reduce at some sizes; rank 0 prints the result as a line of JSON.

Run by doctor/nccl.py in a fresh process, because NCCL reads its environment once.
"""

import json
import os
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from slipstream.parallel.choose import AllReducePath, paths, slowest
from slipstream.parallel.distributed import RankGroup, SumOrder, rank_group
from slipstream.parallel.symmetric import BUFFER_BYTES, SymmetricUnavailable, open_symmetric
from slipstream.parallel.timing import message, time_calls

GATHERED, REDUCED = "gathered", "reduced"  # gloo's two ways
CPU_CALLS, CPU_REPEATS = 10, 3
DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Microseconds at each size, or why there are none."""

    us: list[float]
    reason: str


def main() -> None:
    """Join the world that the environment describes, measure, report."""
    parser = ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--sizes", required=True, help="bytes, with commas between")
    options = parser.parse_args()
    device = torch.device("cpu") if options.device == "cpu" else torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    result = measure(options.path, device, [int(size) for size in options.sizes.split(",")])
    if dist.get_rank() == 0:
        print(json.dumps(asdict(result)), flush=True)
    dist.destroy_process_group()


def measure(path: str, device: torch.device, sizes: list[int]) -> ProbeResult:
    """Time one way at every size."""
    group = rank_group()
    try:
        call = way(path, group, device)
    except SymmetricUnavailable as error:
        return ProbeResult(us=[], reason=str(error))
    mine = [time_one(call, message(size, DTYPE, device), device) for size in sizes]
    return ProbeResult(us=slowest(mine, group.process_group, device), reason="")


def way(path: str, group: RankGroup, device: torch.device) -> Callable[[Tensor], Tensor]:
    """What is timed under a name."""
    if path in (GATHERED, REDUCED):
        order = SumOrder.RANKS if path == GATHERED else SumOrder.BACKEND
        inner = RankGroup(group.process_group, order=order)
        return lambda x: inner.all_reduce(x, path)
    if path == AllReducePath.NCCL.value:
        return lambda x: group.all_reduce(x, path)
    reducer = open_symmetric(group.process_group, device, buffer_bytes=BUFFER_BYTES)
    return paths(group, reducer)[AllReducePath(path)]


def time_one(call: Callable[[Tensor], Tensor], x: Tensor, device: torch.device) -> float:
    """Microseconds of one call."""
    if device.type == "cpu":
        return time_calls(lambda: call(x), device, calls=CPU_CALLS, repeats=CPU_REPEATS)
    return time_calls(lambda: call(x), device)


if __name__ == "__main__":
    main()
