"""One rank, and how it carries out what rank 0 orders; rank 0 does the same itself.

Every rank loads its own share, so no rank ever holds the whole target.
"""

import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slipstream.config.engine import PAGE_SIZE, EngineConfig
from slipstream.config.placement import LEADER_ALONE
from slipstream.draft.checkpoint import LoadedDraft
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.flow.batch import Batch
from slipstream.flow.orders import (
    LoadTarget,
    MakePools,
    PlaceDraft,
    RankShare,
    Release,
    SetDelay,
    StartGrammar,
    TellShare,
)
from slipstream.flow.prefill import Prefill
from slipstream.layers.attention import Attention
from slipstream.layers.linear import Linear, packed_bytes
from slipstream.models.decoder import Decoder
from slipstream.parallel.device_stamps import DeviceStamps
from slipstream.parallel.ring import DecisionRing
from slipstream.parallel.stamps import Stage, Stamps
from slipstream.parallel.world import World, solo_world
from slipstream.runner.load import load_placed_draft, load_rank_target, seat_of
from slipstream.runner.memory import device_memory
from slipstream.runner.worker import Worker
from slipstream.text.grammar import Grammars
from slipstream.text.tokenizer import load_tokenizer

OpenWorld = Callable[[LoadTarget], World]


def stamps_for(device: torch.device) -> Stamps:
    """Where a rank on this device writes how far it is."""
    return DeviceStamps(device) if device.type == "cuda" else Stamps()


class Rank:
    """The state of one rank: its groups, its share of the target, of the draft, and a worker over both."""

    def __init__(
        self,
        device: torch.device,
        *,
        stamps: Stamps | None = None,
        ring: DecisionRing | None = None,
        open_world: OpenWorld | None = None,
        on_tensor: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        """open_world: makes the groups when the target's sizes are known; one rank alone if left out."""
        self.device, self.stamps = device, stamps or Stamps()
        self.ring = DecisionRing() if ring is None else ring  # one without decisions yet counts as false
        self._open_world = open_world or (lambda order: solo_world(device))
        self._on_tensor = on_tensor
        self._world: World | None = None
        self._target: Decoder | None = None
        self._order: LoadTarget | None = None
        self._placed: PlaceDraft | None = None
        self._draft: LoadedDraft | None = None
        self._grammars: Grammars | None = None
        self._worker: Worker | None = None
        self._orders: dict[type, Callable[[Any], Any]] = {
            LoadTarget: self._load_target,
            PlaceDraft: self._place_draft,
            MakePools: lambda order: self._make_pools(order.config),
            Prefill: self._prefill,
            Batch: self._step,
            Release: lambda order: self.worker.release(order.request, complete=order.complete),
            SetDelay: self._set_delay,
            StartGrammar: self._start_grammar,
            TellShare: lambda order: self.share(),
        }

    @property
    def worker(self) -> Worker:
        """What runs requests; the pools have been made."""
        assert self._worker is not None, "MakePools comes before requests"
        return self._worker

    @property
    def grammars(self) -> Grammars:
        """Of the target's tokenizer, whose tables are made when they are first asked for.

        Raises:
            ValueError: there is no tokenizer, or it cannot have any.
        """
        assert self._order is not None, "LoadTarget comes first"
        if self._order.path is None:
            raise ValueError("random weights have no tokenizer, so no answer can follow a grammar; load a real model")
        if self._grammars is None:
            config, tokenizer = self._order.config, load_tokenizer(Path(self._order.path))
            self._grammars = Grammars(tokenizer, vocab_size=config.vocab_size, eos_ids=config.eos_ids)
        return self._grammars

    @property
    def world(self) -> World:
        """The groups; the target has been loaded."""
        assert self._world is not None, "LoadTarget comes first"
        return self._world

    def carry_out(self, order: object) -> Any:
        """Do what an order says.

        Raises:
            ValueError: an order about models or memory that cannot be met; what was there before stays.
        """
        return self._orders[type(order)](order)

    def share(self) -> RankShare:
        """What this rank holds now."""
        free, total = device_memory(self.device)
        draft, worker = self._draft, self._worker
        pools = [] if worker is None else [worker.pool, *([worker.drafter.pool] if worker.drafter else [])]
        return RankShare(
            rank=self.world.rank,
            host=socket.gethostname(),
            device=str(self.device),
            target_bytes=_bytes_of(self._target),
            draft_bytes=_bytes_of_draft(draft, self._target),
            kv_bytes=sum(pool.num_bytes for pool in pools),
            draft_group=0 if draft is None else draft.model.group.size,
            shards=_shards(draft),
            free_bytes=free,
            total_bytes=total,
            entry_bytes=self._entry_bytes(),
            shares_embedding=_one_table(draft, self._target),
            all_reduce=_paths(self.world),
            reruns=0 if worker is None else worker.cycle.reruns,
            graphs=() if worker is None else worker.captures(),
        )

    def close(self) -> None:
        """Let go of models, pools and graphs: NCCL's groups cannot end while a graph that uses them lives."""
        if self._worker is not None:
            self._worker.close()
        self._worker, self._draft, self._target, self._world = None, None, None, None
        gc.collect()

    def _drop_graphs(self) -> None:
        if self._worker is not None:
            self._worker.drop_graphs()

    def _load_target(self, order: LoadTarget) -> None:
        self.stamps.mark(Stage.MEET)
        self._world = self._open_world(order)
        self.stamps.mark(Stage.LOAD)
        with self._refusing("the target", "use more ranks, or a smaller dtype"):
            self._target = load_rank_target(order, self._world, on_tensor=self._loaded)
        self._order, self._grammars = order, None
        self.stamps.mark(Stage.IDLE)

    def _place_draft(self, order: PlaceDraft) -> None:
        assert self._target is not None, "LoadTarget comes first"
        assert self._order is not None, "it left its order"
        self.stamps.mark(Stage.LOAD)
        with self._refusing("the draft", "place it on more ranks, or lower --memory-fraction"):
            self._draft = load_placed_draft(order, self._order, self._target, self.world)
        self._placed = order
        self._target.capture(() if self._draft is None else self._draft.model.config.captures)
        self._drop_graphs()  # a cycle launched ahead may still write into their memory on the host
        self._worker = None  # its pools were made for the old draft; MakePools comes next, sized by what is free now
        self.stamps.mark(Stage.IDLE)

    def _make_pools(self, config: EngineConfig) -> None:
        assert self._target is not None, "LoadTarget comes first"
        self._drop_graphs()
        self._worker = None  # the old pools go before the new ones come
        drafts = self._placed is not None and self._placed.wanted
        seat = seat_of(self._placed.placement if self._placed else LEADER_ALONE, self.world, drafts=drafts)
        with self._refusing("the KV pools", "lower --memory-fraction, --kv-gib or --max-len"):
            self._worker = Worker(
                config, self._target, self._draft, seat=seat, stamps=self.stamps, open_grammars=lambda: self.grammars
            )

    def _start_grammar(self, order: StartGrammar) -> None:
        with suppress(ValueError):  # a request that needs what cannot be is told so
            grammars = self.grammars
            if order.grammar is not None:
                grammars.start(order.grammar)

    def _prefill(self, work: Prefill) -> Any:
        firsts = self.worker.prefill(work)
        for chunk, first in zip(work.chunks, firsts, strict=True):
            place = {
                "request": chunk.request,
                "position": chunk.stop,
                "token": first.tokens[0] if first is not None and first.tokens else None,
            }
            self.ring.append(self.stamps.read()[0], Stage.PREFILL, **place)
        return firsts

    def _step(self, batch: Batch) -> Any:
        runs = self.worker.step(batch)
        for row, run in zip(batch.rows, runs, strict=True):
            self.ring.append(
                batch.cycle,
                Stage.ACCEPT,
                request=row.request,
                position=row.root_position,
                steps=batch.speculation.steps,
                tokens=list(run.tokens),
            )
        return runs

    def _set_delay(self, order: SetDelay) -> None:
        self.world.wire.delay_us = order.microseconds
        self._drop_graphs()

    @contextmanager
    def _refusing(self, what: str, remedy: str) -> Iterator[None]:
        """Too little memory is said in a sentence, on whichever rank it happens."""
        try:
            yield
        except (torch.OutOfMemoryError, MemoryError):
            raise ValueError(
                f"{what} does not fit into the memory of {self.device} on rank {self.world.rank}; {remedy}"
            ) from None

    def _loaded(self, num_bytes: int) -> None:
        self.stamps.mark(Stage.LOAD)
        self._on_tensor(num_bytes)

    def _entry_bytes(self) -> int:
        assert self._target is not None, "LoadTarget comes first"
        if self._draft is None:
            return _entry_bytes(self._target)
        feature = self._draft.model.config.feature_size * self._target.norm.weight.element_size()
        per_entry = -(-feature // PAGE_SIZE)  # a page keeps one feature
        return _entry_bytes(self._target) + _entry_bytes(self._draft.model) + per_entry


def _paths(world: World) -> tuple[tuple[int, str, float], ...]:
    """Which way each message size takes, and what it was measured to take."""
    rows = () if world.paths is None else world.paths.rows
    return tuple((row.num_bytes, row.chosen.value, row.us[row.chosen]) for row in rows)


def _entry_bytes(model: Decoder | Eagle3Draft) -> int:
    """Bytes of one token's keys and values in all of a model's layers, as this rank holds them."""
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    itemsize = model.norm.weight.element_size()
    return sum(2 * layer.num_kv_heads * layer.head_dim * itemsize for layer in layers)


def _bytes_of_draft(draft: LoadedDraft | None, target: Decoder | None) -> int:
    """Bytes that the draft takes by itself: an embedding that is the target's own tensor is counted there."""
    if draft is None:
        return 0
    shared = _bytes_of(draft.model.embed) if _one_table(draft, target) else 0
    return _bytes_of(draft.model) - shared + draft.target_ids.nbytes


def _one_table(draft: LoadedDraft | None, target: Decoder | None) -> bool:
    """Whether both read one tensor; a draft of another cut has the same table, but a copy of it."""
    if draft is None or target is None:
        return False
    return draft.model.embed.weight.data_ptr() == target.embed.weight.data_ptr()


def _bytes_of(module: nn.Module | None) -> int:
    """Bytes of a module's weights, packed ones too; a tensor that two layers share counts once."""
    if module is None:
        return 0
    tensors = {id(each): each for each in module.parameters()}
    packed = [layer.packed for layer in module.modules() if isinstance(layer, Linear) and layer.packed is not None]
    return sum(each.nbytes for each in tensors.values()) + sum(packed_bytes(each) for each in packed)


def _shards(draft: LoadedDraft | None) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The shapes that tell a placement: what is cut has this rank's own width."""
    if draft is None:
        return ()
    model = draft.model
    attention, mlp = model.first.attention, model.first.mlp
    shapes = {
        "attention.qkv": attention.qkv.shape,
        "attention.output": attention.output.shape,
        "mlp.gate_up": mlp.gate_up.shape,
        "mlp.down": mlp.down.shape,
        "head": model.head.shape,
        "embedding": tuple(model.embed.weight.shape),
    }
    return tuple(shapes.items())
