"""What cycles cost lately, by batch and shape, and so what a drafted one costs beside a plain one."""

from dataclasses import dataclass, field

from slipstream.config.speculation import PLAIN, Speculation
from slipstream.flow.batch import bucket

RECENT = 1 / 16  # weight of a new cycle


@dataclass(slots=True)
class CostGauge:
    """Seconds on the device side: all together, and of recent cycles."""

    prefill_s: float = 0.0
    cycle_s: float = 0.0
    batches: int = 0
    _recent_s: dict[tuple[int, Speculation], float] = field(default_factory=dict)

    def see(self, num_rows: int, shape: Speculation, seconds: float) -> None:
        """Count a batch's cycle."""
        self.cycle_s += seconds
        self.batches += 1
        key = (bucket(num_rows), shape)
        before = self._recent_s.get(key, seconds)
        self._recent_s[key] = before + RECENT * (seconds - before)

    def cycle_ratio(self, shape: Speculation) -> dict[int, float]:
        """R, a cycle's time over a plain step's, of the batches for which both were seen; by bucket."""
        plain = {size: seconds for (size, seen), seconds in self._recent_s.items() if seen == PLAIN}
        cycle = {size: seconds for (size, seen), seconds in self._recent_s.items() if seen == shape}
        return {size: cycle[size] / plain[size] for size in sorted(cycle) if plain.get(size)}
