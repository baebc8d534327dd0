"""Where a process stands among its group: spawned by us, by torchrun or by Ray, told in the same variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A rank and how to reach rank 0."""

    rank: int
    size: int
    local_rank: int  # which of the host's devices
    local_size: int  # ranks on this host
    address: str  # of rank 0
    port: int  # of the store in which the ranks meet; 0 = rank 0 takes a free one
    store_is_elsewhere: bool = False  # torchrun's agent keeps the store
    attempt: int = 0  # how often the launcher has restarted the group; its store remembers earlier ones

    def environment(self) -> dict[str, str]:
        """The variables that tell another process its spot."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def launched_spot(environment: Mapping[str, str] = os.environ) -> Spot | None:
    """This process's spot if a launcher started it as one of several ranks; None otherwise.

    Raises:
        ValueError: the launcher's variables are incomplete or no numbers.
    """
    if _number(environment, "WORLD_SIZE", 1) <= 1:
        return None
    missing = [name for name in VARIABLES if not environment.get(name)]
    if missing:
        raise ValueError(f"WORLD_SIZE is set but {', '.join(missing)} is not; start with torchrun, or unset WORLD_SIZE")
    if environment["MASTER_PORT"] == "0":
        raise ValueError("MASTER_PORT is 0, where nobody can meet; start with torchrun --standalone, or name a port")
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if rank >= size:
        raise ValueError(f"RANK is {rank} but WORLD_SIZE {size}; start with torchrun, or unset both")
    return Spot(
        rank=rank,
        size=size,
        local_rank=_number(environment, "LOCAL_RANK", rank),
        local_size=_number(environment, "LOCAL_WORLD_SIZE", size),
        address=environment["MASTER_ADDR"],
        port=_number(environment, "MASTER_PORT"),
        store_is_elsewhere=environment.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True",
        attempt=_number(environment, "TORCHELASTIC_RESTART_COUNT"),
    )


def _number(environment: Mapping[str, str], name: str, default: int = 0) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}, which is no number; start with torchrun, or unset it")
    return int(text)
