"""Does the draft still fit what is asked? Recent acceptance beside that of the whole life of an engine."""

from dataclasses import dataclass

RECENT = 1 / 256  # weight of a new cycle: a memory of a few hundred


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
