"""Does the draft still fit what is asked? Recent acceptance beside what it was when the engine was new.

The reference stands still: a mean that went along would follow a drift that takes hours (vLLM #41838: accept length
3.07 to 2.8 until a restart). Only cycles as deep as the engine's count, for shallower ones accept less by themselves.
"""

from dataclasses import dataclass

REFERENCE_CYCLES = 8192  # that make the reference; a cycle of one request counts one
RECENT_CYCLES = 2048  # the memory of the recent mean: an older cycle's weight falls by e with each so many
THRESHOLD = 0.95  # the noise of the recent mean is about a hundredth, of many requests together


@dataclass(slots=True, kw_only=True)
class AcceptanceGauge:
    """Accept length of full-depth cycles: of the first ones, and lately."""

    steps: int  # of a full-depth cycle
    cycles: int = 0
    reference: float = 0.0  # mean of the first cycles, of all while there are fewer
    recent: float = 0.0  # exponential mean

    def see(self, *, emitted: int, depth: int) -> None:
        """Count one request's cycle; depth: how deep it was drafted. What was not drafted, or less deep, says nothing.

        emitted: before the run is trimmed, for the draft has no part in where an answer ends.
        """
        if depth < self.steps or not depth:
            return
        self.cycles += 1
        if self.cycles <= REFERENCE_CYCLES:
            self.reference += (emitted - self.reference) / self.cycles
        weight = max(1 / RECENT_CYCLES, 1 / self.cycles)  # the plain mean until there is a past to forget
        self.recent += weight * (emitted - self.recent)

    @property
    def drift(self) -> float | None:
        """Recent over reference accept length; None until there are a reference and something after it."""
        if self.cycles < REFERENCE_CYCLES + RECENT_CYCLES:
            return None
        return self.recent / self.reference

    @property
    def drifted(self) -> bool:
        """Whether so much less is accepted than at first that it is no accident."""
        return self.drift is not None and self.drift < THRESHOLD

    def __str__(self) -> str:
        """One line: the number, its name and what it means."""
        meaning = (
            f"accept length of the last {RECENT_CYCLES} or so drafted cycles over that of the engine's first"
            f" {REFERENCE_CYCLES}"
        )
        if self.drift is None:
            needed = REFERENCE_CYCLES + RECENT_CYCLES
            return f"acceptance drift: not known before {needed} drafted cycles, {self.cycles} so far ({meaning})"
        numbers = f"{self.recent:.2f} / {self.reference:.2f}"
        verdict = f"; below {THRESHOLD}: the draft fits these prompts less than the first ones" if self.drifted else ""
        return f"acceptance drift {self.drift:.2f} = {numbers} ({meaning}){verdict}"
