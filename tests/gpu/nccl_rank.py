"""One rank of an NCCL group that sums for ever: `python -m tests.gpu.nccl_rank FOLDER RANK SIZE`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from slipstream.parallel.device_stamps import DeviceStamps
from slipstream.parallel.heartbeat import Peer, new_token, open_socket, this_peer
from slipstream.parallel.ring import DecisionRing
from slipstream.parallel.roll import Limits
from slipstream.parallel.stamps import Stage
from slipstream.parallel.watchdog import Watchdog
from tests.unit.parallel.ranks import await_text, publish

LIMITS = Limits(interval_s=0.1, limit_s=3, load_limit_s=60, grace_s=1, interrupt_s=2)


def main(folder: Path, rank: int, size: int) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    sock = open_socket("127.0.0.1")
    stamps, ring = DeviceStamps(device), DecisionRing()
    publish(folder / f"peer-{rank}", this_peer(rank, sock, stamps).as_text())
    if rank == 0:
        publish(folder / "token", new_token().hex())
    group = [Peer.from_text(await_text(folder / f"peer-{each}", 60)) for each in range(size)]
    token = bytes.fromhex(await_text(folder / "token"))
    watchdog = Watchdog(
        rank, group, sock=sock, token=token, stamps=stamps, ring=ring, ring_path=folder / "rings", limits=LIMITS
    )
    watchdog.start()
    watchdog.wait_for_all(60)
    try:
        stamps.mark(Stage.LOAD)
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=size)
        run(folder, rank, device, stamps)
    except Exception as error:
        raise watchdog.blame(error) from error


def run(folder: Path, rank: int, device: torch.device, stamps: DeviceStamps) -> None:
    x = torch.zeros(1 << 16, device=device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stamps.mark(Stage.PROPOSE)
        dist.all_reduce(x)
        stamps.mark(Stage.VERIFY)
        dist.all_reduce(x)
        stamps.mark(Stage.ACCEPT)
    for cycle in range(1, 10_000_000):
        stamps.begin(cycle)
        graph.replay()
        torch.cuda.synchronize()
        if cycle == 100:
            publish(folder / f"ready-{rank}", "")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
