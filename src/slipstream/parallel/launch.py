"""Start the other ranks of this host, and bring all ranks of a group together.

The same meeting serves ranks that we spawn, that torchrun started on one or many hosts, and Ray actors.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from slipstream.parallel.channel import Follower, Leader, open_follower, open_leader
from slipstream.parallel.heartbeat import Peer, new_token, open_socket, this_peer
from slipstream.parallel.ring import DecisionRing
from slipstream.parallel.roll import Limits
from slipstream.parallel.spot import Spot
from slipstream.parallel.stamps import Stamps
from slipstream.parallel.watchdog import Watchdog

LOCALHOST = "127.0.0.1"
HEARTBEAT_S = 30.0  # for the first heartbeat of every rank
GOODBYE_S = 2.0  # for a follower to leave by itself
PARENT = "SLIPSTREAM_PARENT"  # the pid of the process that spawned a rank
PARENT_S = 0.5  # between two looks whether it lives


@dataclass(slots=True, kw_only=True)
class Child:
    """A rank that this process started."""

    rank: int
    process: subprocess.Popen[bytes]

    def obituary(self) -> str | None:
        """How it ended, in a sentence, or None while it runs."""
        code = self.process.poll()
        return (
            None if code is None else f"rank {self.rank} ended with code {code} before it joined; see its words above"
        )


@dataclass(slots=True, kw_only=True)
class Membership:
    """A rank's ties to its group."""

    spot: Spot
    store: dist.TCPStore
    device_type: str
    watchdog: Watchdog
    stamps: Stamps
    ring: DecisionRing
    leader: Leader | None  # rank 0's end of the channel
    follower: Follower | None  # another rank's
    children: Sequence[Child] = ()

    def leave(self) -> None:
        """Go in peace: the others must not take this for a failure. Rank 0 ends its children."""
        self.watchdog.leaving()
        for end in (self.leader, self.follower):
            if end is not None:
                with suppress(OSError):
                    end.close()
        end_children(self.children)
        self.watchdog.stop()


def local_spot(tp: int) -> Spot:
    """Rank 0 of `tp` ranks on this host."""
    return Spot(rank=0, size=tp, local_rank=0, local_size=tp, address=LOCALHOST, port=0)


def open_store(spot: Spot) -> dist.TCPStore:
    """The store in which the ranks meet; rank 0 keeps it unless the launcher does."""
    keeps = spot.rank == 0 and not spot.store_is_elsewhere
    return dist.TCPStore(
        spot.address, spot.port, is_master=keeps, wait_for_workers=False, timeout=timedelta(seconds=600)
    )


def spawn(spot: Spot, command: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[Child]:
    """Start ranks 1.. of a local group; each runs `command` and learns its spot from its environment."""
    children = []
    for rank in range(1, spot.size):
        num_threads = threads_each(spot.local_size, environment)
        own = replace(spot, rank=rank, local_rank=rank).environment()
        process = subprocess.Popen(
            list(command),
            env={**environment, **own, PARENT: str(os.getpid()), "OMP_NUM_THREADS": num_threads},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is rank 0's to hear
        )
        children.append(Child(rank=rank, process=process))
    return children


@contextmanager
def ending_with_parent(environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """A spawned rank without a watchdog yet ends when its parent has, instead of waiting minutes for a dead rank 0."""
    parent, done = environment.get(PARENT), threading.Event()

    def watch(pid: int) -> None:
        while not done.wait(PARENT_S):
            if os.getppid() != pid:
                os._exit(1)

    if parent is not None:
        threading.Thread(target=watch, args=(int(parent),), name="parent", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def kill_children(children: Sequence[Child]) -> None:
    """End children at once: their group never came up."""
    for child in children:
        child.process.kill()
        child.process.wait()


def end_children(children: Sequence[Child]) -> None:
    """Wait a moment for all children together, then kill those that are left."""
    ends = time.monotonic() + GOODBYE_S
    for child in children:
        try:
            child.process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


def threads_each(local_size: int, environment: Mapping[str, str]) -> str:
    """CPU threads for each rank of a host: more of them than cores would slow all ranks many times over."""
    return environment.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // local_size))


def join(
    spot: Spot,
    store: dist.TCPStore,
    *,
    make_stamps: Callable[[str], Stamps],
    device_type: str = "",
    limits: Limits | None = None,
    on_failure: Callable[[str], None] | None = None,
    children: Sequence[Child] = (),
) -> Membership:
    """Meet the other ranks: the channel, then everybody's address, then heartbeats.

    device_type, limits: rank 0's, which the others are told. make_stamps: for a device type. on_failure: Watchdog's.

    Raises:
        ValueError: a rank never came; GroupError: no heartbeat of one.
    """
    folder = Path(tempfile.gettempdir()) / f"slipstream-{store.port}"
    leader, follower = None, None
    if spot.rank == 0:
        leader = open_leader(spot, store, lost=lambda: _first_obituary(children))
        token, limits, stamps = new_token(), limits or Limits(), make_stamps(device_type)
        leader.tell((token, limits, device_type))
        sock = open_socket(socket.gethostbyname(spot.address))
        me = this_peer(0, sock, stamps)
        texts = [me.as_text(), *_introductions(leader, children)]
        leader.tell(texts)
    else:
        follower = open_follower(spot, store)
        token, limits, device_type = follower.hear()
        stamps = make_stamps(device_type)
        sock = open_socket(follower.own_address())
        me = this_peer(spot.rank, sock, stamps)
        follower.answer(me.as_text())
        texts = follower.hear()
    ring, peers = DecisionRing(), [Peer.from_text(text) for text in texts]
    watchdog = Watchdog(
        spot.rank,
        peers,
        sock=sock,
        token=token,
        stamps=stamps,
        ring=ring,
        ring_path=folder,
        limits=limits,
        on_failure=on_failure,
    )
    _start(watchdog)
    return Membership(
        spot=spot,
        store=store,
        device_type=device_type,
        watchdog=watchdog,
        stamps=stamps,
        ring=ring,
        leader=leader,
        follower=follower,
        children=children,
    )


def follower_command() -> list[str]:
    """What a spawned rank runs: slipstream from where it is, and no module that lies in the folder by chance."""
    root = str(Path(__file__).parents[2])
    script = f"import sys; sys.path.append({root!r}); from slipstream.engine.follow import main; main()"
    return [sys.executable, "-P", "-c", script]


def _start(watchdog: Watchdog) -> None:
    watchdog.start()
    try:
        watchdog.wait_for_all(HEARTBEAT_S)
    except BaseException:
        watchdog.stop()  # the caller ends the ranks now; it must not take that for a failure
        raise


def _introductions(leader: Leader, children: Sequence[Child]) -> list[str]:
    try:
        return leader.hear()
    except (EOFError, ConnectionError):
        ends = time.monotonic() + GOODBYE_S
        while (sentence := _first_obituary(children)) is None and time.monotonic() < ends:
            time.sleep(0.05)  # a process closes its sockets before it has ended
        raise ValueError(sentence or "a rank hung up before it joined; look at its words") from None


def _first_obituary(children: Sequence[Child]) -> str | None:
    return next((words for child in children if (words := child.obituary()) is not None), None)
