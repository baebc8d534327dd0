"""The ranks as Ray actors, on one host or many; only this file imports Ray, and only when it is asked for.

Ray places the ranks, starts them and says when one has died. It carries no cycle: the host loop speaks to rank 0 over a
socket (engine/remote.py), and the ranks among themselves as ever.
"""

import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from typing import Any

import torch

from slipstream.engine.executor import RankExecutor
from slipstream.engine.follow import follow
from slipstream.engine.join import lead, own_device
from slipstream.engine.remote import Line, RemoteExecutor, serve_driver
from slipstream.flow.relay import Kind
from slipstream.parallel.channel import without_delay
from slipstream.parallel.launch import open_store
from slipstream.parallel.roll import ENDS, Limits
from slipstream.parallel.spot import Spot
from slipstream.runner.rank import Rank

PLACE_S = 60  # for the cluster to have room
START_S = 600.0  # for every actor's process to import slipstream
GOODBYE_S = 2.0  # for the ranks to leave by themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Berth:
    """Where Ray put an actor."""

    node: str
    address: str
    host: str
    pid: int
    gpus: str  # CUDA_VISIBLE_DEVICES as Ray set it


@dataclass(frozen=True, slots=True, kw_only=True)
class Seating:
    """What an actor is to be."""

    spot: Spot
    gpus: str  # all that the ranks of this node have: shared memory between two needs both to be seen


class RayRank:
    """The body of an actor."""

    def where(self) -> Berth:
        """Say where this is."""
        import ray  # noqa: PLC0415 - optional package

        return Berth(
            node=ray.get_runtime_context().get_node_id(),
            address=ray.util.get_node_ip_address(),
            host=socket.gethostname(),
            pid=os.getpid(),
            gpus=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        )

    def open_doors(self, spot: Spot, key: bytes) -> tuple[int, Any]:
        """Rank 0's: the store in which the ranks meet, and a socket for the host loop. Their ports and address."""
        self._store = open_store(spot)
        self._listener = Listener((spot.address, 0), authkey=key)
        return self._store.port, self._listener.address

    def lead(self, seating: Seating, device: torch.device, limits: Limits, folder: str) -> None:
        """Be rank 0 until the host loop hangs up or the group has ended."""
        spot = self._sit(seating, folder)
        with self._listener as listener:
            line = Line(without_delay(listener.accept()))

        def open_executor(line: Line) -> RankExecutor:
            on_tensor: Callable[[int], None] = lambda num_bytes: line.say(Kind.LOADED, num_bytes)  # noqa: E731
            if spot.size == 1:
                return RankExecutor(Rank(own_device(device.type, spot), on_tensor=on_tensor))
            on_failure: Callable[[str], None] = lambda sentence: line.say(Kind.ENDED, sentence)  # noqa: E731
            return lead(spot, self._store, device, limits=limits, on_tensor=on_tensor, on_failure=on_failure)

        serve_driver(line, open_executor)

    def follow(self, seating: Seating, folder: str) -> int:
        """Be another rank; the code that a process of its own would exit with."""
        return follow(self._sit(seating, folder))

    def _sit(self, seating: Seating, folder: str) -> Spot:
        os.environ.update(seating.spot.environment())
        if seating.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = seating.gpus
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # stdout is for answers, and those are the host loop's
        with suppress(OSError):  # relative paths mean the host loop's folder
            os.chdir(folder)
        return seating.spot


def seats(berths: Sequence[Berth], *, port: int) -> list[Seating]:
    """Each actor's rank is its place; berths of one node stand together, rank 0's first."""
    seatings = []
    for rank, berth in enumerate(berths):
        mates = [other for other, each in enumerate(berths) if each.node == berth.node]
        spot = Spot(
            rank=rank,
            size=len(berths),
            local_rank=mates.index(rank),
            local_size=len(mates),
            address=berths[0].address,
            port=port,
        )
        gpus = ",".join(berths[mate].gpus for mate in mates if berths[mate].gpus)
        seatings.append(Seating(spot=spot, gpus=gpus))
    return seatings


def by_node(berths: Sequence[Berth]) -> list[int]:
    """Places of berths such that those of one node stand together; the first stays the first."""
    nodes = [berth.node for berth in berths]
    return sorted(range(len(berths)), key=lambda place: nodes.index(nodes[place]))


class Crew:
    """The actors, and what of Ray was taken for them."""

    def __init__(self, ray: Any, tp: int, kind: str) -> None:
        self._ray, self._tp, self._kind = ray, tp, kind
        self._owns_ray = not ray.is_initialized()
        self._group: Any = None
        self._actors: list[Any] = []
        self._ends: list[Any] = []  # by rank: of the one call that lasts as long as the rank
        self._berths: list[Berth] = []

    def start(self) -> None:
        """Reserve a place for each rank and start its actor.

        Raises:
            ValueError: too small a cluster, or an actor that does not come up.
        """
        ray = self._ray
        if self._owns_ray:
            _init(ray, self._tp)
        have = int(ray.cluster_resources().get(self._kind, 0))
        if have < self._tp:
            raise ValueError(
                f"--tp {self._tp} needs {self._tp} {self._kind}s and the Ray cluster has {have}; lower --tp, or join a"
                " larger cluster with RAY_ADDRESS"
            )
        self._group = ray.util.placement_group([{self._kind: 1}] * self._tp, strategy="PACK")
        if not self._group.wait(PLACE_S):
            raise ValueError(
                f"the Ray cluster has {have} {self._kind}s, but {self._tp} were not free for {PLACE_S} s; end what runs"
                " there, or lower --tp"
            )
        actor = ray.remote(RayRank)
        cores, gpus = (1, 0) if self._kind == "CPU" else (0, 1)
        for bundle in range(self._tp):
            strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._group, bundle)
            options = {"num_cpus": cores, "num_gpus": gpus, "scheduling_strategy": strategy}
            self._actors.append(actor.options(max_restarts=0, **options).remote())
        berths = self._get([each.where.remote() for each in self._actors])
        order = by_node(berths)
        self._actors, self._berths = [self._actors[place] for place in order], [berths[place] for place in order]

    def muster(self, device: torch.device, limits: Limits) -> Any:
        """Tell every actor its rank; the connection to rank 0.

        Raises:
            ValueError: an actor died, or rank 0 cannot be reached.
        """
        key, folder = secrets.token_bytes(32), os.getcwd()
        alone = seats(self._berths, port=0)[0].spot
        port, address = self._get([self._actors[0].open_doors.remote(alone, key)])[0]
        first, *others = seats(self._berths, port=port)
        self._ends.append(self._actors[0].lead.remote(first, device, limits, folder))
        for actor, seating in zip(self._actors[1:], others, strict=True):
            self._ends.append(actor.follow.remote(seating, folder))
        try:
            return without_delay(Client(tuple(address), authkey=key))
        except (OSError, EOFError, AuthenticationError) as error:
            raise ValueError(
                f"rank 0 on host {self._berths[0].host} cannot be reached at {address[0]} port {address[1]}: {error};"
                " open the ports between this machine and the cluster"
            ) from None

    def lost(self) -> str | None:
        """Which rank has ended, in a sentence; None while all are there."""
        ended, _ = self._ray.wait(self._ends, num_returns=len(self._ends), timeout=0)
        for rank, end in enumerate(self._ends):
            if end in ended:
                return f"{self.name(rank)} has ended{ENDS}"
        return None

    def name(self, rank: int) -> str:
        """A rank in words."""
        return f"rank {rank} (pid {self._berths[rank].pid} on host {self._berths[rank].host})"

    def end(self, *, in_peace: bool) -> None:
        """Take everything down that was taken; in peace the ranks leave by themselves."""
        if self._ray.is_initialized():  # at the interpreter's end Ray may have gone first, and the actors with it
            with suppress(Exception):
                self._dismiss(in_peace=in_peace)
        if self._owns_ray:
            self._ray.shutdown()

    def _dismiss(self, *, in_peace: bool) -> None:
        if in_peace and self._ends:
            self._ray.wait(self._ends, num_returns=len(self._ends), timeout=GOODBYE_S)
        for actor in self._actors:
            self._ray.kill(actor)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)

    def _get(self, calls: list[Any]) -> list[Any]:
        try:
            return self._ray.get(calls, timeout=START_S)
        except self._ray.exceptions.RayError as error:
            words = " ".join(str(error).split())
            raise ValueError(f"a Ray actor did not come up: {words[-300:]}") from None


def open_ray_ranks(
    tp: int, device: torch.device, *, limits: Limits, on_tensor: Callable[[int], None] = lambda num_bytes: None
) -> RemoteExecutor:
    """Start `tp` ranks as actors and wait until they have met.

    Raises:
        ValueError: Ray is missing, has no room, or a rank never came; GroupError: a rank died.
    """
    if ":" in str(device):
        raise ValueError(f"--device {device} names one GPU but Ray chooses them; use --device {device.type}")
    crew = Crew(_import_ray(), tp, "GPU" if device.type == "cuda" else "CPU")
    try:
        crew.start()
        connection = crew.muster(device, limits)
    except BaseException:
        crew.end(in_peace=False)
        raise
    executor = RemoteExecutor(connection, crew.name(0), lost=crew.lost, end=crew.end, on_tensor=on_tensor)
    try:
        executor.wait_until_up()
    except ValueError:
        executor.close()
        raise
    return executor


def _import_ray() -> Any:
    try:
        import ray  # noqa: PLC0415 - optional package
        import ray.util.scheduling_strategies  # noqa: PLC0415 - optional package
    except ImportError:
        raise ValueError("--executor ray needs Ray, which is not installed: pip install 'slipstream[ray]'") from None
    return ray


def _init(ray: Any, tp: int) -> None:
    """Join the cluster that RAY_ADDRESS names, or start one on this machine with room for all ranks."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "")
    own = {} if address else {"address": "local", "num_cpus": max(tp, os.cpu_count() or 1), "include_dashboard": False}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, RuntimeError) as error:
        what = f"the Ray cluster at {address} (RAY_ADDRESS) cannot be joined" if address else "Ray does not start here"
        raise ValueError(f"{what}: {' '.join(str(error).split())[:300]}") from None
