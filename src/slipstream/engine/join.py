"""A process joins its group, as rank 0 or another one, wherever the others were started."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from slipstream.engine.executor import RankExecutor
from slipstream.flow.orders import LoadTarget
from slipstream.parallel.launch import Child, Membership, join, open_store
from slipstream.parallel.roll import Limits
from slipstream.parallel.spot import Spot
from slipstream.parallel.world import World, open_world
from slipstream.runner.rank import Rank, stamps_for

VERIFY_ROWS = (1, 2, 4, 6, 8, 16, 32, 64)  # at whose message sizes the ways to all-reduce are timed


def lead(
    spot: Spot,
    store: dist.TCPStore,
    device: torch.device,
    *,
    limits: Limits | None = None,
    on_tensor: Callable[[int], None] = lambda num_bytes: None,
    on_failure: Callable[[str], None] | None = None,
    children: Sequence[Child] = (),
) -> RankExecutor:
    """Be rank 0 of the ranks that meet in a store. on_failure: Watchdog's.

    Raises:
        ValueError: a rank never came; GroupError: no heartbeat of one.
    """
    membership = join(
        spot,
        store,
        make_stamps=lambda kind: stamps_for(own_device(kind, spot)),
        device_type=device.type,
        limits=limits,
        on_failure=on_failure,
        children=children,
    )
    return RankExecutor(rank_of(membership, on_tensor=on_tensor), membership)


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
