"""A part of a cycle that is captured in a CUDA graph at its first use and replayed afterwards."""

from collections.abc import Callable

import torch
from torch import Tensor

from slipstream.parallel.timing import captured


class Segment:
    """Device work that reads and writes static tensors only; doing it twice leaves what doing it once does, but for
    one tensor that it moves on.
    """

    def __init__(self, pool: tuple[int, int] | None) -> None:
        """pool: the graphs' shared memory; without it nothing is captured, as on a CPU."""
        self._pool = pool
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self, body: Callable[[], None], *, moves: Tensor | None = None) -> None:
        """Do the work; all ranks capture at the same call, since a capture runs its collectives to warm up.

        body: always the same. It is handed in rather than kept, so that nothing here holds its owner alive.
        moves: what the work moves on: each warm-up finds it as it was.
        """
        if self._pool is None:
            body()
            return
        if self._graph is None:
            self._graph = captured(body, pool=self._pool, before=_restorer(moves))
        self._graph.replay()


def _restorer(moves: Tensor | None) -> Callable[[], object]:
    """What puts a tensor back to what it is now."""
    if moves is None:
        return lambda: None
    kept = moves.clone()
    return lambda: moves.copy_(kept)
