"""From paths to models on a device: the target, its draft, and what they take.

Raises ValueError with one sentence for whatever does not fit.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from slipstream.config.draft import CaptureConvention
from slipstream.config.hf import model_config
from slipstream.config.model import ModelConfig
from slipstream.config.placement import Placement
from slipstream.draft.checkpoint import LoadedDraft, dummy_draft, load_draft
from slipstream.draft.names import embedding_name
from slipstream.draft.placement import Seat
from slipstream.flow.orders import LoadTarget, PlaceDraft
from slipstream.layers.linear import pack_linears
from slipstream.models.decoder import Decoder
from slipstream.models.registry import dummy_target, entry_of, load_target
from slipstream.parallel.group import Group, SoloGroup
from slipstream.parallel.world import World
from slipstream.weights.folder import read_config
from slipstream.weights.reader import open_source


def read_model_config(path: Path) -> ModelConfig:
    """The shape of the model in a directory or a .gguf file; unknown architectures are refused here."""
    config = model_config(read_config(path))
    entry_of(config)
    return config


def load_rank_target(
    order: LoadTarget, world: World, *, on_tensor: Callable[[int], None] = lambda num_bytes: None
) -> Decoder:
    """Load a rank's share of a target; on a CPU its weights end up packed for oneDNN."""
    dtype, common = getattr(torch, order.dtype), {"max_position": order.max_position, "group": world.target}
    if order.path is None:
        target = dummy_target(order.config, device=world.device, dtype=dtype, **common)
    else:
        source = open_source(Path(order.path))
        target = load_target(order.config, source, device=world.device, dtype=dtype, on_tensor=on_tensor, **common)
    pack_linears(target)
    return target


def load_placed_draft(order: PlaceDraft, of: LoadTarget, target: Decoder, world: World) -> LoadedDraft | None:
    """Load a rank's share of a draft; None where the placement puts none.

    The target's embedding and head are shared where both models are cut over the same ranks. Elsewhere the draft reads
    the whole tables again: from its own checkpoint, or from the target's.
    """
    seat = seat_of(order.placement, world)
    if not order.wanted or seat.group is None:
        return None
    group, dtype, same_cut = seat.group, getattr(torch, order.dtype), seat.group.size == world.size
    common = {"max_position": of.max_position, "device": world.device, "dtype": dtype, "group": group}
    common["embedding_group"] = group if same_cut else None
    if order.dummy is not None:
        loaded = dummy_draft(order.dummy, embedding=target.embed.weight.data if same_cut else None, **common)
    else:
        assert order.path is not None, "a draft is wanted, from somewhere"
        path = Path(order.path)
        embedding, head = _lent_tables(of, target, path, same_cut=same_cut)
        loaded = load_draft(
            path,
            target=of.config,
            embedding=embedding,
            head=head,
            convention=CaptureConvention(order.convention),
            wiring=order.wiring,
            **common,
        )
    pack_linears(loaded.model)
    return loaded


def _lent_tables(
    of: LoadTarget, target: Decoder, draft_path: Path, *, same_cut: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The embedding and the head that a target lends, as far as the draft has none of its own.

    This rank's own rows where both models are cut over the same ranks, else whole tables, read again.
    """
    present, device = set(open_source(draft_path).names()), target.embed.weight.device
    names = entry_of(of.config).names(of.config)
    embedding, head = target.embed.weight.data if same_cut else None, None
    if embedding is None and embedding_name(present) is None and of.path is not None:
        embedding = open_source(Path(of.path)).read(names["embed.weight"][0].name).to(device)
    if "lm_head.weight" not in present and of.path is not None:
        if same_cut and target.head.packed is None:
            head = target.head.weight.data
        else:  # tied: the embedding is the head
            head = open_source(Path(of.path)).read(names.get("head.weight", names["embed.weight"])[0].name).to(device)
    return embedding, head


def seat_of(placement: Placement, world: World, *, drafts: bool = True) -> Seat:
    """This rank's place in a placement; drafts: whether some rank holds a draft."""
    everyone = placement.replicated or placement.ranks == world.size
    group: Group | None = SoloGroup() if placement.replicated else None
    if not placement.replicated and placement.holds(world.rank):
        group = world.drafts[placement.ranks]
    return Seat(
        group=group,
        target=world.target,
        grown_by_all=everyone and world.size > 1,
        whole=placement.replicated or placement.ranks == 1,
        drafts=drafts,
    )
