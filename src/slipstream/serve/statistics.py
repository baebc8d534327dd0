"""What an engine says of itself while it lives."""

from dataclasses import dataclass

from slipstream.cache.table import CacheStatistics
from slipstream.engine.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """Since the engine started; a new shape of cycle starts the accept lengths anew."""

    cycles: int  # of the whole batch
    acceptance_drift: float | None  # recent / first; None until enough was drafted
    drifted: bool  # it is below the threshold of engine/gauge.py
    accept_length_first: float  # of full-depth cycles, one a request; 0 before the first
    accept_length_recent: float
    drift_line: str  # the numbers with their names, in a sentence
    cache: CacheStatistics
    pinned_tokens: int  # of prompts that stay cached


def statistics_of(engine: Engine) -> EngineStatistics:
    """As they are now."""
    gauge = engine.gauge
    return EngineStatistics(
        cycles=engine.num_cycles,
        acceptance_drift=gauge.drift,
        drifted=gauge.drifted,
        accept_length_first=gauge.reference,
        accept_length_recent=gauge.recent,
        drift_line=str(gauge),
        cache=engine.pages.statistics,
        pinned_tokens=engine.pages.num_pinned * engine.config.page_size,
    )
