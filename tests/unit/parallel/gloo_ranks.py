"""One gloo rank of test_distributed.py: run every collective once and save what came out.

python gloo_ranks.py RANK SIZE STORE OUT
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from slipstream.parallel.distributed import RankGroup, SumOrder, rank_group

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool)


def share(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank brings: numbers whose float sums depend on the order."""
    generator = torch.Generator().manual_seed(rank)
    numbers = torch.randn(5, 7, generator=generator) * 10.0 ** torch.randint(-3, 4, (5, 7), generator=generator)
    return (numbers > 0) if dtype is torch.bool else numbers.to(dtype)


def collectives(group: RankGroup, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    mine = share(group.rank, dtype)
    return {
        "all_reduce": group.all_reduce(mine.clone(), "sum").clone(),
        "all_gather": group.all_gather(mine.clone(), "gather"),
        "broadcast": group.broadcast(mine.clone(), "broadcast").clone(),
        "strided": group.all_reduce(mine.clone().t(), "sum of a transposed tensor").clone(),
        "empty": group.all_gather(mine[:0], "gather nothing"),
    }


def main(rank: int, size: int, store: str, out: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    group = rank_group()
    found: dict[str, object] = {str(dtype): collectives(group, dtype) for dtype in DTYPES}
    with torch.inference_mode():
        found["inference"] = collectives(group, torch.float32)["all_reduce"].clone()
    backend = RankGroup(group.process_group, order=SumOrder.BACKEND)
    found["backend"] = backend.all_reduce(share(rank, torch.float32), "sum in any order")
    pair = dist.new_group([size - 2, size - 1])  # its rank 0 is not the world's
    if rank >= size - 2:
        inner = rank_group(pair)
        found["pair"] = (inner.rank, inner.size, inner.broadcast(torch.tensor([rank]), "who is first").clone())
    torch.save(found, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
