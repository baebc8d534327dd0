"""What rank 0 tells the other ranks besides a cycle's batch and a prefill; every rank carries each order out.

Plain values only: orders travel between processes.
"""

from dataclasses import dataclass

from slipstream.config.draft import AS_DECLARED, DraftConfig, DraftWiring
from slipstream.config.engine import EngineConfig
from slipstream.config.grammar import Grammar
from slipstream.config.model import ModelConfig
from slipstream.config.placement import Placement
from slipstream.flow.request import RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTarget:
    """Load this rank's share of a target."""

    config: ModelConfig
    path: str | None  # a folder or .gguf file; None = random weights of this shape
    dtype: str
    max_position: int  # the context to serve, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceDraft:
    """Load this rank's share of a draft, from a folder or as random weights; without either, drop the draft."""

    path: str | None  # beside `dummy`, where that shape is from
    placement: Placement
    dtype: str
    convention: str = "auto"
    wiring: DraftWiring = AS_DECLARED
    dummy: DraftConfig | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is a draft at all."""
        return self.path is not None or self.dummy is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePools:
    """Make the KV pools and be ready for requests."""

    config: EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StartGrammar:
    """Compile a grammar on a thread, ahead of the requests that follow it; without one, only get ready to."""

    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Forget a request."""

    request: RequestId
    complete: int = 0  # so many of its first entries will be others' prefix: the draft writes what it has left out


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDelay:
    """Delay every collective on the device, in microseconds."""

    microseconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TellShare:
    """Report what this rank holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """What a rank holds, in bytes."""

    rank: int
    host: str
    device: str
    target_bytes: int
    draft_bytes: int  # 0 where the draft is not held
    kv_bytes: int
    draft_group: int  # ranks that the draft is cut over; 0 where it is not held
    shards: tuple[tuple[str, tuple[int, ...]], ...]  # shapes of the draft's cut parameters, as loaded
    free_bytes: int  # of the device's memory, now
    total_bytes: int
    entry_bytes: int  # of one token in this rank's KV pools
    shares_embedding: bool  # whether the draft's embedding is the target's
    all_reduce: tuple[tuple[int, str, float], ...] = ()  # message bytes, the way it takes, microseconds measured
    reruns: int = 0  # cycles run twice because the ranks' trees differed
    graphs: tuple[tuple[str, float, int], ...] = ()  # captured shapes: seconds that it took, bytes that it added
