"""One rank of a group of small processes: `python -m tests.unit.parallel.ranks FOLDER RANK SIZE WAYS...`. No torch.

The ranks meet in a folder. A rank runs cycles until told otherwise by a file: `FOLDER/do-RANK` holds `raise` or `hang`.
"""

import ctypes
import json
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from slipstream.parallel.heartbeat import Peer, new_token, open_socket, this_peer
from slipstream.parallel.ring import DecisionRing
from slipstream.parallel.roll import Limits
from slipstream.parallel.stamps import Stage, Stamps
from slipstream.parallel.watchdog import Watchdog

LIMITS = Limits(interval_s=0.1, limit_s=1.2, load_limit_s=5, grace_s=0.5, interrupt_s=0.4)
STEP_S = 0.02


def main(folder: Path, rank: int, size: int, host_names: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job hands down that it is ignored
    sock, stamps, ring = open_socket("127.0.0.1"), Stamps(), DecisionRing()
    me = this_peer(rank, sock, stamps)
    if host_names:
        me = replace(me, host_name=host_names[rank])
    publish(folder / f"peer-{rank}", me.as_text())
    if rank == 0:
        publish(folder / "token", new_token().hex())
    group = [Peer.from_text(await_text(folder / f"peer-{each}")) for each in range(size)]
    token = bytes.fromhex(await_text(folder / "token"))
    watchdog = Watchdog(
        rank, group, sock=sock, token=token, stamps=stamps, ring=ring, ring_path=folder / "rings", limits=LIMITS
    )
    watchdog.start()
    watchdog.wait_for_all(10)
    publish(folder / f"ready-{rank}", "")
    try:
        run(folder, rank, stamps, ring)
    except Exception as error:
        raise watchdog.blame(error) from error
    watchdog.stop()


def run(folder: Path, rank: int, stamps: Stamps, ring: DecisionRing) -> None:
    """Cycles in lockstep would need collectives; these go on by the clock, until a file says otherwise."""
    orders = folder / f"do-{rank}"
    for cycle in range(1, 10_000):
        stamps.begin(cycle)
        stamps.mark(Stage.PROPOSE)
        ring.append(cycle, Stage.PROPOSE, drafted=(1, 2, 3))
        time.sleep(STEP_S)
        stamps.mark(Stage.VERIFY)
        if orders.exists():
            obey(orders.read_text(), folder / f"hangs-{rank}")
            return
        stamps.mark(Stage.ACCEPT)
        stamps.mark(Stage.IDLE)


def obey(order: str, hangs: Path) -> None:
    """hangs: appears just before this rank hangs."""
    if order == "raise":
        raise OSError("the disk of rank is on fire")
    if order == "hang":
        publish(hangs, "")
        hang()


def hang() -> None:
    """Lock a C mutex twice: neither a signal nor Python can end it."""
    mutex = ctypes.create_string_buffer(128)
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_init(mutex, None)
    for _ in range(2):
        libc.pthread_mutex_lock(mutex)


def publish(path: Path, text: str) -> None:
    """Write a file that appears whole."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.rename(path)


def await_text(path: Path, seconds: float = 20) -> str:
    ends = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > ends:
            raise TimeoutError(path.name)
        time.sleep(0.01)
    return path.read_text()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
