"""Bring a group of ranks up: rank 0 starts or finds the others, then all meet and make their groups."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from slipstream.engine.executor import RankExecutor, Ranks
from slipstream.engine.follow import follow
from slipstream.engine.join import lead
from slipstream.engine.ray import open_ray_ranks
from slipstream.parallel.channel import refuse_second_group
from slipstream.parallel.launch import (
    Child,
    follower_command,
    kill_children,
    local_spot,
    open_store,
    spawn,
    threads_each,
)
from slipstream.parallel.roll import Limits
from slipstream.parallel.spot import launched_spot
from slipstream.parallel.world import refuse_second_world
from slipstream.runner.rank import Rank

SPAWN, RAY = "spawn", "ray"
EXECUTORS = (SPAWN, RAY)


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
    refuse_second_world()
    children: list[Child] = []
    if spot is None:
        _check_devices(tp, device)
        spot = local_spot(tp)
        store = open_store(spot)
        spot = replace(spot, port=store.port)
        children = spawn(spot, command or follower_command())
        if device.type == "cpu":  # as many threads as each of them
            torch.set_num_threads(int(threads_each(tp, os.environ)))
    else:
        store = open_store(spot)
        refuse_second_group(spot, store)
    try:
        return lead(spot, store, device, limits=limits, on_tensor=on_tensor, children=children)
    except BaseException:
        kill_children(children)
        raise


def open_ranks(
    executor: str,
    tp: int,
    device: torch.device,
    *,
    limits: Limits,
    on_tensor: Callable[[int], None] = lambda num_bytes: None,
) -> Ranks:
    """Bring up the ranks of an engine in the way that was asked for.

    Raises:
        ValueError: an unknown way, or the group cannot come up.
    """
    if executor not in EXECUTORS:
        raise ValueError(f"--executor {executor} is unknown; use {' or '.join(EXECUTORS)}")
    if executor == RAY:
        if launched_spot() is not None:
            raise ValueError("--executor ray starts the ranks itself; leave it out under torchrun")
        return open_ray_ranks(tp, device, limits=limits, on_tensor=on_tensor)
    return open_executor(tp, device, limits=limits, on_tensor=on_tensor)


def follow_if_launched() -> None:
    """In a process that a launcher started as a rank other than 0: serve rank 0, then exit. Returns on rank 0."""
    spot = launched_spot()
    if spot is not None and spot.rank > 0:
        raise SystemExit(follow(spot))


def _check_devices(tp: int, device: torch.device) -> None:
    if str(device).startswith("cuda:"):
        raise ValueError(f"--device {device} names one GPU but --tp {tp} takes GPUs 0 to {tp - 1}; use --device cuda")
    if device.type == "cuda" and torch.cuda.device_count() < tp:
        raise ValueError(
            f"--tp {tp} needs {tp} GPUs and this machine has {torch.cuda.device_count()}; lower --tp, or start ranks"
            " on several machines with torchrun"
        )
