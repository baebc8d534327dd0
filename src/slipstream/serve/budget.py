"""Share out a device's memory: weights, both KV pools and workspace together, after the models have been loaded.

Every rank grants the same pages, so the rank with the least room for its entries decides.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.flow.orders import RankShare
from slipstream.kernels.reference import KEY_BLOCK

GIB = 1 << 30
CPU_KV_GIB = 2.0
CUDA_FRACTION = 0.9
CUDA_WORKSPACE = GIB  # activations, logits and what the libraries take for themselves
IMBALANCE = 0.1  # of the freest rank's memory
SPARE_ENTRIES = KEY_BLOCK  # whole blocks are read past the last page


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much memory may be used: a share of the device, or so much for keys and values."""

    memory_fraction: float | None = None  # of each device, all together
    kv_gib: float | None = None  # of keys and values on each rank

    def __post_init__(self) -> None:
        if self.memory_fraction is not None and self.kv_gib is not None:
            raise ValueError("--memory-fraction and --kv-gib both size the KV pools; pass one of them")
        if self.memory_fraction is not None and not 0 < self.memory_fraction <= 1:
            raise ValueError(f"--memory-fraction is a share between 0 and 1, not {self.memory_fraction}")


def count_entries(
    budget: Budget, shares: Sequence[RankShare], *, wanted: int, longest: int, tail: int, least: int
) -> int:
    """KV entries that every rank can hold, at most `wanted`.

    longest: entries of one request at the full context; tail: how many of them are a cycle's, beyond the text. least:
    below which nothing can run.

    Raises:
        ValueError: one request of the full context does not fit; the smallest fraction or length that does is named.
    """
    fraction = budget.memory_fraction
    on_cpu = shares[0].device.startswith("cpu")
    if fraction is None and (on_cpu or budget.kv_gib is not None):
        gib = CPU_KV_GIB if budget.kv_gib is None else budget.kv_gib
        entries = min(wanted, *(_within(gib, share, on_cpu=on_cpu) for share in shares))
        if entries < least:
            raise ValueError(f"{gib:.2f} GiB hold {entries} KV entries; raise kv_gib")
        return entries
    fraction = CUDA_FRACTION if fraction is None else fraction
    rooms = [_Room.of(share, shares, fraction) for share in shares]
    tightest = min(rooms, key=lambda room: room.entries)
    if tightest.entries < longest:
        raise ValueError(_too_little(tightest, rooms, fraction, longest=longest, tail=tail))
    return min(wanted, tightest.entries)


def balance_warning(shares: Sequence[RankShare]) -> str | None:
    """A sentence about the rank with much less free memory than another, or None.

    Taken when every rank holds its share of the target and none holds the draft.
    """
    freest, fullest = (choose(shares, key=lambda share: share.free_bytes) for choose in (max, min))
    if freest.free_bytes - fullest.free_bytes <= IMBALANCE * freest.free_bytes:
        return None
    return (
        f"rank {fullest.rank} ({fullest.host} {fullest.device}) has {fullest.free_bytes / GIB:.1f} GiB free beside its"
        f" share of the target but rank {freest.rank} has {freest.free_bytes / GIB:.1f}; look for another process on"
        " that device, since the fullest rank decides how much all can cache"
    )


@dataclass(frozen=True, slots=True)
class _Room:
    """What a fraction of its device leaves one rank for keys and values."""

    share: RankShare
    neighbours: int  # ranks that use the same memory, this one too
    num_bytes: float

    @staticmethod
    def of(share: RankShare, shares: Sequence[RankShare], fraction: float) -> "_Room":
        on_cpu = share.device.startswith("cpu")
        neighbours = Counter(each.host for each in shares)[share.host] if on_cpu else 1
        used = share.total_bytes - _free_for_pools(share, on_cpu=on_cpu) + (0 if on_cpu else CUDA_WORKSPACE)
        return _Room(share, neighbours, (fraction * share.total_bytes - used) / neighbours)

    @property
    def entries(self) -> int:
        """How many entries fit."""
        return max(0, int(self.num_bytes / self.share.entry_bytes) - SPARE_ENTRIES)

    def fraction_for(self, fraction: float, entries: int) -> float:
        """The fraction that would hold so many entries."""
        missing = (entries + SPARE_ENTRIES) * self.share.entry_bytes - self.num_bytes
        return fraction + missing * self.neighbours / self.share.total_bytes


def _free_for_pools(share: RankShare, *, on_cpu: bool) -> int:
    """Pools that are there now make room for the new ones; a CPU's take no memory before they are written."""
    return share.free_bytes + (0 if on_cpu else share.kv_bytes)


def _within(gib: float, share: RankShare, *, on_cpu: bool) -> int:
    free_bytes = _free_for_pools(share, on_cpu=on_cpu)
    if not on_cpu and gib * GIB > free_bytes:
        raise ValueError(
            f"--kv-gib {gib:g} is more than the {free_bytes / GIB:.1f} GiB that the weights leave on rank"
            f" {share.rank} ({share.device}); lower it"
        )
    return int(gib * GIB / share.entry_bytes)


def _too_little(room: _Room, rooms: Sequence[_Room], fraction: float, *, longest: int, tail: int) -> str:
    needed = max(each.fraction_for(fraction, longest) for each in rooms)
    raised = f"raise --memory-fraction to {int(needed * 100 + 1) / 100:.2f}" if needed <= 0.99 else ""
    length = room.entries - tail
    lowered = f"lower --max-len to {length}" if length >= 2 else ""
    remedies = " or ".join(filter(None, (raised, lowered))) or "use a smaller model or more ranks"
    return (
        f"memory fraction {fraction:g} leaves {max(0.0, room.num_bytes) / GIB:.2f} GiB for keys and values on rank"
        f" {room.share.rank} ({room.share.device}) and one request of the full context needs"
        f" {(longest + SPARE_ENTRIES) * room.share.entry_bytes / GIB:.2f}; {remedies}"
    )
