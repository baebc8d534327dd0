"""A group over torch.distributed: gloo between CPU processes, NCCL between GPUs.

Nothing here waits for the device, so every collective can be captured in a CUDA graph.
"""

from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor

GLOO = "gloo"

# torch 2.13 renamed it and warns about the old name; 2.11 knows only that.
_gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class SumOrder(Enum):
    """In which order the ranks' shares are added; over two ranks all orders give the same bits."""

    RANKS = "ranks"  # ((rank 0 + rank 1) + rank 2) + ..., whatever the size of the message
    BACKEND = "backend"  # as the library likes, which may change with the size


class RankGroup:
    """The ranks of a process group; a message is one call of the backend's, on the current stream."""

    def __init__(self, process_group: dist.ProcessGroup, *, order: SumOrder) -> None:
        self.process_group = process_group
        self.order = order
        self.rank = dist.get_rank(process_group)
        self.size = dist.get_world_size(process_group)
        assert self.rank >= 0, "a process joins only the groups it belongs to"

    def all_reduce(self, x: Tensor, name: str) -> Tensor:
        """Sum x over the ranks; moves x once, or size times where the order is that of the ranks."""
        if x.numel() == 0:
            return x
        if self.order is SumOrder.RANKS:
            return reduce(torch.add, self.all_gather(x, name).unbind())
        x = x.contiguous()
        dist.all_reduce(x, group=self.process_group)
        return x

    def mailing(self, x: Tensor, op: str, name: str) -> AbstractContextManager[None]:
        """The library's collectives are calls of their own."""
        return nullcontext()

    def all_gather(self, x: Tensor, name: str) -> Tensor:
        """Every rank's x, in rank order."""
        gathered = x.new_empty((self.size, *x.shape))
        if x.numel():
            _gather_into(gathered.view(-1), x.contiguous().view(-1), group=self.process_group)
        return gathered

    def broadcast(self, x: Tensor, name: str) -> Tensor:
        """Rank 0's x, where rank 0 is this group's first, not the world's."""
        x = x.contiguous()
        if x.numel():
            dist.broadcast(x, group=self.process_group, group_src=0)
        return x


def rank_group(process_group: dist.ProcessGroup | None = None) -> RankGroup:
    """A group over the given ranks, or over all of them.

    gloo sums in rank order: it is exact about the order, and gathering is also what is faster there (loopback, two
    ranks, 4096 floats: 0.45 ms against 1.56). NCCL sums as it likes: see `choose` for one order over more than two.
    """
    group = dist.group.WORLD if process_group is None else process_group
    assert group is not None, "init_process_group comes first"
    order = SumOrder.RANKS if dist.get_backend(group) == GLOO else SumOrder.BACKEND
    return RankGroup(group, order=order)
