"""Bring a group of ranks up: rank 0 starts or finds the others, then all meet and make their groups."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module

import torch

from slipstream.engine.executor import RankExecutor
from slipstream.flow.orders import LoadTarget
from slipstream.parallel.launch import (
    Child,
    Membership,
    follower_command,
    join,
    kill_children,
    local_spot,
    open_store,
    spawn,
)
from slipstream.parallel.roll import Limits
from slipstream.parallel.spot import Spot, launched_spot
from slipstream.parallel.world import World, open_world
from slipstream.runner.rank import Rank, stamps_for

EXECUTORS = ("spawn", "ray")
VERIFY_ROWS = (1, 2, 4, 6, 8, 16, 32, 64)  # at whose message sizes the ways to all-reduce are timed


def open_executor(
    tp: int,
    device: torch.device,
    *,
    limits: Limits | None = None,
    on_tensor: Callable[[int], None] = lambda num_bytes: None,
    command: Sequence[str] = (),
) -> RankExecutor:
    """Rank 0 of `tp` ranks: alone, with ranks that it spawns, or with those that a launcher started.

    command: what a spawned rank runs; slipstream's own if left out.

    Raises:
        ValueError: tp contradicts the launcher, there are too few devices, or a rank never came.
    """
    spot = launched_spot()
    if spot is None and tp == 1:
        return RankExecutor(Rank(device, on_tensor=on_tensor))
    if spot is not None and spot.size != tp:
        raise ValueError(f"--tp {tp} contradicts the launcher, which started {spot.size} ranks; leave --tp out")
    children: list[Child] = []
    if spot is None:
        _check_devices(tp, device)
        spot = local_spot(tp)
        store = open_store(spot)
        spot = replace(spot, port=store.port)
        children = spawn(spot, command or follower_command())
    else:
        store = open_store(spot)
    try:
        membership = join(
            spot,
            store,
            make_stamps=lambda kind: stamps_for(own_device(kind, spot)),
            device_type=device.type,
            limits=limits,
            children=children,
        )
    except BaseException:
        kill_children(children)
        raise
    return RankExecutor(rank_of(membership, on_tensor=on_tensor), membership)


def open_ranks(
    executor: str,
    tp: int,
    device: torch.device,
    *,
    limits: Limits,
    on_tensor: Callable[[int], None] = lambda num_bytes: None,
) -> RankExecutor:
    """Bring up the ranks of an engine in the way that was asked for.

    Raises:
        ValueError: an unknown way, or the group cannot come up.
    """
    if executor not in EXECUTORS:
        raise ValueError(f"--executor {executor} is unknown; use {' or '.join(EXECUTORS)}")
    return open_executor(tp, device, limits=limits, on_tensor=on_tensor)


def follow_if_launched() -> None:
    """In a process that a launcher started as a rank other than 0: serve rank 0, then exit. Returns on rank 0."""
    spot = launched_spot()
    if spot is not None and spot.rank > 0:
        raise SystemExit(import_module("slipstream.engine.follow").follow(spot))


def join_group(spot: Spot) -> tuple[Rank, Membership]:
    """The same for a rank other than 0, which is told the kind of device.

    Raises:
        GroupError: no heartbeat of another rank.
    """
    membership = join(spot, open_store(spot), make_stamps=lambda kind: stamps_for(own_device(kind, spot)))
    return rank_of(membership), membership


def rank_of(membership: Membership, *, on_tensor: Callable[[int], None] = lambda num_bytes: None) -> Rank:
    """This process's rank; its groups are made once the target's message sizes are known."""
    device = own_device(membership.device_type, membership.spot)

    def open_groups(order: LoadTarget) -> World:
        dtype = getattr(torch, order.dtype)
        sizes = [rows * order.config.hidden_size * dtype.itemsize for rows in VERIFY_ROWS]
        return open_world(membership.spot, membership.store, device, sizes=sizes, dtype=dtype, stamps=membership.stamps)

    return Rank(device, stamps=membership.stamps, ring=membership.ring, open_world=open_groups, on_tensor=on_tensor)


def own_device(kind: str, spot: Spot) -> torch.device:
    """The device of a rank; a GPU each."""
    if kind != "cuda":
        return torch.device(kind)
    torch.cuda.set_device(spot.local_rank)
    return torch.device("cuda", spot.local_rank)


def _check_devices(tp: int, device: torch.device) -> None:
    if str(device).startswith("cuda:"):
        raise ValueError(f"--device {device} names one GPU but --tp {tp} takes GPUs 0 to {tp - 1}; use --device cuda")
    if device.type == "cuda" and torch.cuda.device_count() < tp:
        raise ValueError(
            f"--tp {tp} needs {tp} GPUs and this machine has {torch.cuda.device_count()}; lower --tp, or start ranks"
            " on several machines with torchrun"
        )
