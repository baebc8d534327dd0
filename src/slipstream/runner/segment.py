"""A part of a cycle that is captured in a CUDA graph at its first use and replayed afterwards."""

from collections.abc import Callable

import torch

from slipstream.parallel.timing import captured


class Segment:
    """Device work that reads and writes static tensors only; doing it twice leaves what doing it once does."""

    def __init__(self, pool: tuple[int, int] | None) -> None:
        """pool: the graphs' shared memory; without it nothing is captured, as on a CPU."""
        self._pool = pool
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self, body: Callable[[], None]) -> None:
        """Do the work; all ranks capture at the same call, since a capture runs its collectives to warm up.

        body: always the same. It is handed in rather than kept, so that nothing here holds its owner alive.
        """
        if self._pool is None:
            body()
            return
        if self._graph is None:
            self._graph = captured(body, pool=self._pool)
        self._graph.replay()
