"""Ranks as threads of one process: rank 0's engine drives them all, as engine/executor.py does over processes."""

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import BrokenBarrierError
from typing import Any

import torch
from torch import Tensor

from slipstream.config.engine import EngineConfig
from slipstream.config.placement import Placement
from slipstream.config.speculation import Speculation
from slipstream.engine.engine import Engine
from slipstream.flow.batch import Batch
from slipstream.flow.orders import LoadTarget, MakePools, PlaceDraft, Release
from slipstream.flow.output import Run
from slipstream.flow.prefill import Prefill
from slipstream.flow.request import RequestId
from slipstream.parallel.group import SoloGroup
from slipstream.parallel.instrument import Wire
from slipstream.parallel.loopback import Exchange, LoopbackGroup
from slipstream.parallel.world import World
from slipstream.runner.load import read_model_config
from slipstream.runner.rank import Rank
from slipstream.telemetry.clock import Clock
from tests.tensor_parallel import CONTEXT, Pair
from tests.tiny_engine import CPU

MEETING_S = 30.0  # a rank that comes later than that hangs


class LoopbackRanks:
    """An executor over threads; every order's results are kept apart by rank, and must be the same integers."""

    def __init__(self, pair: Pair, tp: int) -> None:
        self._exchanges = {size: Exchange(size, timeout_s=MEETING_S) for size in range(2, tp + 1) if tp % size == 0}
        self.ranks = [self._rank(rank, tp) for rank in range(tp)]
        self._threads = ThreadPoolExecutor(tp)
        self.num_cycles = 0
        model = LoadTarget(
            config=read_model_config(pair.model), path=str(pair.model), dtype="float32", max_position=CONTEXT
        )
        self.order_all(model)
        self._draft = str(pair.draft)

    @property
    def has_draft(self) -> bool:
        return self.ranks[0].worker.has_draft

    def place(self, placement: Placement) -> None:
        """Load the draft there."""
        self.order_all(PlaceDraft(path=self._draft, placement=placement, dtype="float32"))

    def engine(self, shape: Speculation, **settings: Any) -> Engine:
        """Fresh pools and a host loop over them."""
        config = EngineConfig(speculation=shape, max_len=CONTEXT, max_batch=4, num_pages=90, **settings)
        self.order_all(MakePools(config=config))
        return Engine(config, self, clock=Clock())

    def check(self, shape: Speculation) -> None:
        self.ranks[0].worker.check(shape)

    def prefill(self, work: Prefill) -> tuple[Run | None, ...]:
        return self._agreed(work)

    def step(self, batch: Batch) -> tuple[Run, ...]:
        self.num_cycles += 1
        return self._agreed(batch)

    def release(self, request: RequestId, *, complete: int = 0) -> None:
        self.order_all(Release(request=request, complete=complete))

    def close(self) -> None:
        self._threads.shutdown()

    def order_all(self, order: object) -> list[Any]:
        """Every rank's result. One that fails wakes the others, and its own error is raised."""
        futures = [self._threads.submit(rank.carry_out, order) for rank in self.ranks]
        if any(future.exception() for future in wait(futures, return_when=FIRST_EXCEPTION).done):
            for exchange in self._exchanges.values():
                exchange.abort()
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]

    def _agreed(self, order: object) -> Any:
        results = self.order_all(order)
        assert all(result == results[0] for result in results), f"the ranks emit different tokens: {results}"
        return results[0]

    def _rank(self, rank: int, tp: int) -> Rank:
        ends = {size: LoopbackGroup(each, rank) for size, each in self._exchanges.items() if rank < size}
        drafts = {1: SoloGroup(), **ends} if rank == 0 else ends
        world = World(rank=rank, size=tp, device=CPU, target=ends[tp], drafts=drafts, wire=Wire(), paths=None)
        return Rank(CPU, open_world=lambda order: world)


def add_noise(rank: Rank, *, target: float, draft: float) -> None:
    """Disturb this rank's scores by numbers that no other rank adds; its own generator makes them."""
    worker, generator = rank.worker, torch.Generator().manual_seed(1000 + rank.world.rank)
    if target:
        _disturb(worker.target, target, generator)
    if draft and worker.drafter is not None:
        _disturb(worker.drafter.draft.model, draft, generator)


def _disturb(model: Any, scale: float, generator: torch.Generator) -> None:
    clean: Callable[[Tensor], Tensor] = type(model).logits

    def logits(hidden_TD: Tensor) -> Tensor:
        scores_TV = clean(model, hidden_TD)
        return scores_TV + scale * torch.randn(scores_TV.shape, generator=generator)

    model.logits = logits
