"""Does the draft still fit what is asked, and what do its cycles cost? Lately, beside the whole life of an engine."""

from dataclasses import dataclass, field

from slipstream.config.speculation import PLAIN, Speculation

RECENT = 1 / 256  # weight of a new cycle: a memory of a few hundred
RECENT_COST = 1 / 16  # the same of a cycle's seconds


@dataclass(slots=True)
class AcceptanceGauge:
    """Accept length of drafted cycles: over all of them, and lately."""

    cycles: int = 0
    emitted: int = 0
    recent: float = 0.0  # exponential mean

    def see(self, emitted: int) -> None:
        """Count one request's drafted cycle."""
        self.cycles += 1
        self.emitted += emitted
        weight = max(RECENT, 1 / self.cycles)  # the plain mean until there is a past to forget
        self.recent += weight * (emitted - self.recent)

    @property
    def accept_length(self) -> float:
        """Of all drafted cycles; 0 before the first."""
        return self.emitted / self.cycles if self.cycles else 0.0

    @property
    def drift(self) -> float:
        """Recent over overall accept length: far below 1, the traffic has left what the draft was trained on."""
        return self.recent / self.accept_length if self.cycles else 1.0


@dataclass(slots=True)
class CostGauge:
    """Seconds on the device side: all together, and of recent cycles by batch and shape."""

    prefill_s: float = 0.0
    cycle_s: float = 0.0
    batches: int = 0
    _recent_s: dict[tuple[int, Speculation], float] = field(default_factory=dict)

    def see(self, num_rows: int, shape: Speculation, seconds: float) -> None:
        """Count a batch's cycle."""
        self.cycle_s += seconds
        self.batches += 1
        key = (rounded(num_rows), shape)
        before = self._recent_s.get(key, seconds)
        self._recent_s[key] = before + RECENT_COST * (seconds - before)

    def cycle_ratio(self, shape: Speculation) -> dict[int, float]:
        """R, a cycle's time over a plain step's, of the batches for which both were seen; by rounded size."""
        plain = {size: seconds for (size, seen), seconds in self._recent_s.items() if seen == PLAIN}
        cycle = {size: seconds for (size, seen), seconds in self._recent_s.items() if seen == shape}
        return {size: cycle[size] / plain[size] for size in sorted(cycle) if plain.get(size)}


def rounded(num_rows: int) -> int:
    """A batch's size, up to a power of two."""
    return 1 << (num_rows - 1).bit_length()
