"""One rank on one device: prefill, cycles, and what it keeps of each request.

Shape letters: T prompt tokens of a chunk, F feature width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from slipstream.attention.pool import KVPool, longer_run
from slipstream.config.engine import EngineConfig
from slipstream.config.model import ModelConfig
from slipstream.config.speculation import Speculation
from slipstream.draft.checkpoint import LoadedDraft
from slipstream.draft.drafter import Drafter
from slipstream.draft.placement import Seat
from slipstream.flow.batch import Batch, Row
from slipstream.flow.output import Run
from slipstream.flow.prefill import Prefill
from slipstream.flow.request import RequestId
from slipstream.layers.products import TORCH, Products
from slipstream.models.decoder import Decoder
from slipstream.parallel.cut import kv_heads
from slipstream.parallel.group import Group, SoloGroup
from slipstream.parallel.stamps import Stage, Stamps
from slipstream.runner.cycle import Cycle
from slipstream.runner.entrance import Entrance
from slipstream.runner.graphs import GraphedCycle
from slipstream.runner.inputs import Resident
from slipstream.runner.keeping import PageFeatures
from slipstream.runner.masking import MaskMaker
from slipstream.runner.waiting import shorten
from slipstream.text.grammar import Grammars

CLOSE_S = 1.0  # that a cycle may take to end
KERNELS_FROM = (8, 0)  # compute capability


def no_grammars() -> Grammars:
    """Refuse a grammar (ValueError): nobody said whose tokens it would be of."""
    raise ValueError("this engine has no tokenizer, so no answer can follow a grammar; load a model's folder")


class Worker:
    """The device half of the engine; everything that comes in and goes out is integers."""

    def __init__(
        self,
        config: EngineConfig,
        target: Decoder,
        draft: LoadedDraft | None,
        *,
        seat: Seat | None = None,
        stamps: Stamps | None = None,
        open_grammars: Callable[[], Grammars] = no_grammars,
    ) -> None:
        """draft: this rank's share; None where the placement puts none. seat: alone if left out.

        open_grammars: of the target's tokenizer, asked for when a request needs them.
        """
        self.config, self.target = config, target
        target.products = products = products_for(target.norm.weight)
        self.pool = _pool(config, target.config, group=target.group, like=target.norm.weight, pdl=products.pdl)
        drafter = None
        if draft is not None:
            model = draft.model
            model.products = products
            pool = _pool(config, model.config.body, group=model.group, like=model.norm.weight, pdl=products.pdl)
            drafter = Drafter(draft, pool)
        self.drafter, self.stamps, masker = drafter, stamps or Stamps(), MaskMaker(open_grammars)
        page_features = None if drafter is None else _page_features(config, drafter, like=target.norm.weight)
        self.cycle = Cycle(
            target,
            self.pool,
            drafter,
            masker,
            page_features,
            seat=seat or Seat(group=SoloGroup(), target=target.group, grown_by_all=False, drafts=drafter is not None),
            stamps=self.stamps,
            feature_ring=config.feature_ring,
            page_size=config.page_size,
            synthetic_accept_length=config.synthetic_accept_length,
        )
        self.entrance = Entrance(target, self.pool, drafter, masker, page_features)
        self.graphed: GraphedCycle | None = None
        if config.graphs and config.graph_sizes != () and self.pool.device.type == "cuda":
            steps, sizes = config.speculation.steps, config.graph_sizes
            self.graphed = GraphedCycle(self.cycle, max_batch=config.max_batch, steps=steps, sizes=sizes)
            self.graphed.may_run_ahead = config.run_ahead
        self._residents: dict[RequestId, Resident] = {}

    @property
    def has_draft(self) -> bool:
        """Whether this rank holds a share of a draft."""
        return self.drafter is not None

    def captures(self) -> tuple[tuple[str, float, int], ...]:
        """Captured shapes, with the seconds and bytes that each took."""
        return () if self.graphed is None else tuple(each.told() for each in self.graphed.captures)

    def check(self, shape: Speculation) -> None:
        """Refuse a cycle that this worker's draft cannot grow.

        Raises:
            ValueError: no draft, or fewer draft tokens to choose from than branches.
        """
        if shape.steps == 0:
            return
        if self.drafter is None:
            raise ValueError("there is no draft to speculate with; load one with draft=...")
        vocab_size = self.drafter.draft.model.config.draft_vocab_size
        if shape.topk > vocab_size:
            raise ValueError(f"topk {shape.topk} is more than the {vocab_size} tokens that the draft can say; lower it")

    @torch.inference_mode()
    def prefill(self, work: Prefill) -> tuple[Run | None, ...]:
        """Run chunks of prompts; the first token of each answer whose context ends here, else None.

        A prompt whose log-probabilities are wanted has a run for each of its chunks, without tokens but for the last.
        """
        for entry in work.entries:
            self._residents[entry.request.id] = self.entrance.open(entry)
        self.stamps.mark(Stage.PREFILL)
        firsts = self.entrance.run(work.chunks, [self._residents[chunk.request] for chunk in work.chunks])
        self.stamps.mark(Stage.IDLE)
        return firsts

    @torch.inference_mode()
    def step(self, batch: Batch) -> tuple[Run, ...]:
        """Run one cycle.

        Raises:
            Divergence: this rank's own count of a request differs from the batch, which rank 0 made.
        """
        self.stamps.begin(batch.cycle)
        for request, pages in batch.grown:
            self._residents[request].run = longer_run(self._residents[request].run, pages, self.config.page_size)
        residents = [self._residents[row.request] for row in batch.rows]
        for row, resident in zip(batch.rows, residents, strict=True):
            if resident.expects != (row.root_token, row.root_position):
                raise Divergence(row, batch.cycle, resident.expects)
        runs = self._run_cycle(batch, residents)
        self.stamps.mark(Stage.IDLE)
        return runs

    def close(self) -> None:
        """Let a cycle that was launched ahead end: it writes into the host's memory, which others get now."""
        if self.graphed is not None and self.graphed.ahead is not None:
            self.graphed.ahead.wait(CLOSE_S)

    def drop_graphs(self) -> None:
        """Have the next cycles captured anew: a graph keeps the delay that the wire had."""
        if self.graphed is not None:
            self.graphed.drop()

    @torch.inference_mode()
    def release(self, request: RequestId, *, complete: int = 0) -> None:
        """Forget a request; its pages belong to the host.

        complete: so many of its first entries others will read; the draft's that still wait are written now.
        """
        resident = self._residents.pop(request, None)
        if resident is None or self.drafter is None or not complete:
            return
        if self.graphed is not None:
            self.graphed.hand_back(resident)
        pending = resident.pending
        assert pending is not None, "behind a context something waits for the draft"
        num_needed = complete - 1 - pending.start  # the draft's entry of position p stands at p + 1
        shorten(self.drafter, [resident], most=pending.tokens.shape[0] - max(0, num_needed))

    def _run_cycle(self, batch: Batch, residents: list[Resident]) -> tuple[Run, ...]:
        if self.graphed is None:
            return self.cycle.step(batch, residents)
        if self.graphed.covers(batch):
            return self.graphed.step(batch, residents)
        self.graphed.vacate()
        return self.cycle.step(batch, residents)


class Divergence(RuntimeError):
    """Two ranks hold different answers: nothing after this can be trusted."""

    def __init__(self, row: Row, cycle: int, expects: tuple[int, int]) -> None:
        super().__init__(
            f"the ranks disagree about request {row.request} at cycle {cycle}: rank 0 stands at token {row.root_token},"
            f" position {row.root_position}, this rank at token {expects[0]}, position {expects[1]}"
        )


def _page_features(config: EngineConfig, drafter: Drafter, *, like: Tensor) -> PageFeatures:
    size = drafter.draft.model.config.feature_size
    return PageFeatures(num_pages=config.num_pages, page_size=config.page_size, feature_size=size, like=like)


def products_for(like: Tensor) -> Products:
    """Our kernels, where they run: on a CUDA device that multiplies bf16; torch elsewhere."""
    if like.device.type != "cuda" or torch.cuda.get_device_capability(like.device) < KERNELS_FROM:
        return TORCH
    from slipstream.layers.kernel_products import kernel_products  # noqa: PLC0415 - needs triton

    return kernel_products(like.device)


def _pool(config: EngineConfig, shape: ModelConfig, *, group: Group, like: Tensor, pdl: bool | None) -> KVPool:
    return KVPool(
        num_layers=shape.num_layers,
        num_pages=config.num_pages,
        page_size=config.page_size,
        num_kv_heads=len(kv_heads(shape.num_kv_heads, group.rank, group.size)),
        head_dim=shape.head_dim,
        dtype=like.dtype,
        device=like.device,
        pdl=pdl,
    )
