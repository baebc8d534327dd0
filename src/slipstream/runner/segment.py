"""A part of a cycle that is captured in a CUDA graph at its first use and replayed afterwards."""

from collections.abc import Callable

import torch

from slipstream.parallel.timing import captured


class Segment:
    """Device work that reads and writes static tensors only; running it twice leaves what running it once does."""

    def __init__(self, body: Callable[[], None], *, pool: tuple[int, int] | None) -> None:
        """pool: the graphs' shared memory; None runs the body itself, as on a CPU."""
        self._body, self._pool = body, pool
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> None:
        """Do the work; all ranks capture at the same call, since a capture runs its collectives to warm up."""
        if self._pool is None:
            self._body()
            return
        if self._graph is None:
            self._graph = captured(self._body, pool=self._pool)
        self._graph.replay()
