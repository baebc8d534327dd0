"""All groups of a process, made and used once at start-up, in one fixed order on every rank.

A group whose first use comes later can deadlock when ranks reach it in different orders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from slipstream.parallel.choose import PathReport, choose_group
from slipstream.parallel.group import Group, SoloGroup
from slipstream.parallel.instrument import InstrumentedGroup, Wire, open_wire
from slipstream.parallel.spot import Spot
from slipstream.parallel.stamps import Stamps

COLLECTIVES_TIMEOUT = timedelta(days=7)  # the watchdog, which knows idle from stuck, decides


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The groups that this rank belongs to."""

    rank: int
    size: int
    device: torch.device
    target: Group
    drafts: Mapping[int, Group]  # by number of ranks; without those this rank is no part of
    wire: Wire
    paths: PathReport | None  # how all-reduces travel; None alone


def solo_world(device: torch.device) -> World:
    """One rank."""
    solo = SoloGroup()
    return World(rank=0, size=1, device=device, target=solo, drafts={1: solo}, wire=Wire(), paths=None)


def open_world(
    spot: Spot,
    store: dist.Store,
    device: torch.device,
    *,
    sizes: Sequence[int],
    dtype: torch.dtype,
    stamps: Stamps,
) -> World:
    """Make and exercise every group; all ranks call this together.

    sizes: bytes of the messages that a decode step and a verify send; the fastest way is measured at them.

    Raises:
        ValueError: a process already has torch.distributed groups of its own, or a collective gave a wrong sum.
    """
    refuse_second_world()
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"attempt{spot.attempt}", store),
        rank=spot.rank,
        world_size=spot.size,
        timeout=COLLECTIVES_TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
    wire = open_wire(device, stage=lambda: stamps.read()[1].name.lower())
    measured, report = choose_group(None, device, sizes=sizes, dtype=dtype)
    target = InstrumentedGroup(measured, wire, "target")
    _exercise(target, device)
    drafts: dict[int, Group] = {spot.size: InstrumentedGroup(measured, wire, "draft")}
    if spot.rank == 0:
        drafts[1] = SoloGroup()
    for ranks in range(2, spot.size):
        if spot.size % ranks == 0:
            subgroup = dist.new_group(list(range(ranks)), timeout=COLLECTIVES_TIMEOUT, backend=backend)
            if spot.rank < ranks:
                assert isinstance(subgroup, dist.ProcessGroup), "its own ranks get a group"
                inner, _ = choose_group(subgroup, device, sizes=sizes, dtype=dtype)
                drafts[ranks] = InstrumentedGroup(inner, wire, "draft")
                _exercise(drafts[ranks], device)
    return World(rank=spot.rank, size=spot.size, device=device, target=target, drafts=drafts, wire=wire, paths=report)


def refuse_second_world() -> None:
    """Look before any other rank is started: one that was would wait for this process in vain.

    Raises:
        ValueError: this process already has torch.distributed groups, of its own or of another engine.
    """
    if dist.is_initialized():
        raise ValueError(
            "this process already runs torch.distributed: close the engine that has ranks before making another, or"
            " give slipstream a process of its own"
        )


def close_world() -> None:
    """Take the groups down, so that the process can end or begin again."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _exercise(group: Group, device: torch.device) -> None:
    """Use each collective once, and check what it says."""
    ones = torch.ones(8, device=device)
    total = group.all_reduce(ones.clone(), "start-up")
    ranks = group.all_gather(ones * group.rank, "start-up")
    first = group.broadcast(ones * group.rank, "start-up")
    wanted = torch.arange(group.size, device=device)[:, None]
    if not bool((total == group.size).all() & (ranks == wanted).all() & (first == 0).all()):
        raise ValueError(
            f"a collective over {group.size} ranks gave wrong numbers at start-up; run `slipstream doctor nccl`"
        )
