"""What every smaller tree would have accepted, read off the cycles of one large one.

A tree keeps the nodes with the most probable paths under the draft (EAGLE-2, Li et al. 2024, section 4.2), and grows
level by level. So the tree of K' <= K steps and N' nodes, with the same topk, holds exactly the N' best rows of depth
K' or less of the larger one, as far as those are in it; it accepts the accepted path up to its first missing row.

Shape letters: S requests, N rows of the tree, D depth + 1.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps

import torch
from torch import Tensor

from slipstream.attention.tree import TokenTree
from slipstream.config.speculation import Speculation
from slipstream.flow.batch import Batch
from slipstream.runner.cycle import Verified
from slipstream.runner.worker import Worker
from slipstream.verify.accept import Accepted


class Walks:
    """Adds up, over a run's cycles, what each of the smaller shapes would have accepted."""

    def __init__(self, shapes: Sequence[Speculation]) -> None:
        self.num_seen = 0  # requests times cycles
        self.accepted = dict.fromkeys(shapes, 0)

    def see(self, tree: TokenTree, accepted: Accepted, free: Sequence[bool]) -> None:
        """Count one cycle of the requests that are free to accept all of the tree: others are close to their ends.

        A tree without scores tells nothing.
        """
        if tree.scores_SN is None:
            return
        self.num_seen += sum(free)
        free_S1 = torch.tensor(free, device=tree.tokens_SN.device)[:, None]
        for steps in {shape.steps for shape in self.accepted}:
            ranks_SD, there_SD = path_ranks(tree, accepted, steps)
            for shape in self.accepted:
                if shape.steps == steps:
                    held_SD = free_S1 & there_SD & (ranks_SD < shape.draft_tokens)
                    self.accepted[shape] += int(held_SD.long().cumprod(1).sum().item())  # sync: a measurement

    def accept_lengths(self) -> dict[Speculation, float]:
        """Of every shape, the target's own token included; empty where nothing was seen."""
        if not self.num_seen:
            return {}
        return {shape: 1 + count / self.num_seen for shape, count in self.accepted.items()}


def path_ranks(tree: TokenTree, accepted: Accepted, steps: int) -> tuple[Tensor, Tensor]:
    """For each accepted row below the root: how many rows of depth `steps` or less score better, and whether it is one.

    Both [S, D - 1]; a rank of a row that was not accepted, or is deeper, means nothing.
    """
    assert tree.scores_SN is not None, "a grown tree has scores"
    shallow_SN = tree.depths_SN[:, 1:] <= steps
    order_SN = tree.scores_SN[:, 1:].argsort(dim=1, descending=True, stable=True)
    places_SN = shallow_SN.gather(1, order_SN).long().cumsum(1) - 1
    ranks_SN = torch.empty_like(places_SN).scatter_(1, order_SN, places_SN)
    below_SD = (accepted.rows_SD[:, 1:] - 1).clamp(min=0)
    depth_D = torch.arange(1, accepted.rows_SD.shape[1], device=below_SD.device)
    there_SD = (depth_D[None] < accepted.counts_S[:, None]) & (depth_D[None] <= steps)
    return ranks_SN.gather(1, below_SD), there_SD


@contextmanager
def watching(worker: Worker, walks: Walks) -> Iterator[None]:
    """Let walks see what a worker's cycles accept while the block runs, for which they are not captured."""
    cycle, graphed, worker.graphed = worker.cycle, worker.graphed, None
    inner = cycle.accept

    @wraps(inner)
    def accept(batch: Batch, tree: TokenTree, verified: Verified) -> Accepted:
        accepted = inner(batch, tree, verified)
        walks.see(tree, accepted, [row.depth_limit >= tree.max_depth for row in batch.rows])
        return accepted

    setattr(cycle, "accept", accept)  # noqa: B010 - shadows the method for a while
    try:
        yield
    finally:
        delattr(cycle, "accept")
        worker.graphed = graphed
