"""Which of the confirmed setups is fastest, and whether more rounds of real runs could still change that.

A round's runs answer one part of the prompts, and rounds take the parts in turn. Setups of like speed are told apart by
further rounds between the leader and those that it does not beat by more than the noise (successive elimination:
Even-Dar, Mannor and Mansour 2006, section 3, with the noise measured instead of bounded).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, median
from typing import Any

from slipstream.bench.tune_grid import PLAIN_SETUP, Setup

Round = Mapping[Setup, float]  # tokens a second of the setups that ran in it, plain decoding among them
APART = 2.0  # times the noise of a mean over the rounds, beyond which a setup is beaten


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was confirmed for a batch size, and chosen."""

    setup: Setup
    best: Setup  # the fastest that drafts, chosen or not
    gains: Mapping[Setup, float]  # over plain decoding
    noise: float


def noise_of(rounds: Sequence[Round], again: Sequence[float], *, least: float) -> float:
    """How far two runs of plain decoding within a round are apart, as a share: the rounds' median, `least` at least.

    again: plain decoding once more in each of the first rounds, at its other end.
    """
    pairs = zip(rounds, again, strict=False)
    apart = [2 * abs(each[PLAIN_SETUP] - other) / (each[PLAIN_SETUP] + other) for each, other in pairs]
    return max(least, median(apart))


def gains(rounds: Sequence[Round], again: Sequence[float], *, parts: int) -> dict[Setup, float]:
    """Every setup's speed over plain decoding's: the median of a part's rounds, the geometric mean of the parts."""
    logs: dict[Setup, list[list[float]]] = {setup: [[] for _ in range(parts)] for setup in rounds[0]}
    for number, each in enumerate(rounds):
        plain = fmean([each[PLAIN_SETUP], *again[number : number + 1]])
        for setup, rate in each.items():
            logs[setup][number % parts].append(log(rate / plain))
    return {
        setup: 1.0 if setup == PLAIN_SETUP else exp(fmean(median(part) for part in found if part))
        for setup, found in logs.items()
    }


def unbeaten(rounds: Sequence[Round], again: Sequence[float], *, parts: int, noise: float) -> list[Setup]:
    """The fastest setup of the last round that drafts, and those of it that it does not beat; fastest first."""
    speeds = gains(rounds, again, parts=parts)
    running = sorted((each for each in rounds[-1] if each != PLAIN_SETUP), key=lambda each: -speeds[each])
    margin = APART * noise / sqrt(len(rounds))
    return [each for each in running if speeds[each] * (1 + margin) >= speeds[running[0]]]


def choose(rounds: Sequence[Round], again: Sequence[float], *, parts: int, least_noise: float) -> Choice:
    """Pick by tokens a second of real runs; plain decoding wins ties: a gain has to exceed the noise."""
    noise, speeds = noise_of(rounds, again, least=least_noise), gains(rounds, again, parts=parts)
    best = next(iter(unbeaten(rounds, again, parts=parts, noise=noise)), PLAIN_SETUP)
    chosen = best if speeds[best] > 1 + noise else PLAIN_SETUP
    return Choice(setup=chosen, best=best, gains=speeds, noise=noise)


class Race:
    """The real runs of one batch size."""

    def __init__(self, run: Callable[[Setup, int, str], Mapping[str, Any]], *, parts: int, least_noise: float) -> None:
        """run: a setup in a round, given by its number; a suffix tells a second run in it from the first."""
        self._run, self._parts, self._least_noise = run, parts, least_noise
        self.rounds: list[Round] = []
        self._again: list[float] = []
        self._counts: dict[Setup, tuple[int, int]] = {}  # tokens emitted, cycles

    @property
    def emitted(self) -> int:
        """Tokens of plain decoding's runs, without those once more."""
        return self._counts[PLAIN_SETUP][0]

    @property
    def is_open(self) -> bool:
        """Whether further rounds could change who is fastest."""
        return len(self.unbeaten()) > 1

    def run_round(self, setups: Sequence[Setup], *, both_ends: bool = False) -> None:
        """Plain decoding, then each setup; every other round backwards. both_ends: plain decoding also at the other."""
        number = len(self.rounds)
        runs = [(PLAIN_SETUP, ""), *((setup, "") for setup in setups), *([(PLAIN_SETUP, " again")] * both_ends)]
        records = {each: self._run(each[0], number, each[1]) for each in (runs, runs[::-1])[number % 2]}
        self.rounds.append({setup: record["tokens_per_s"] for (setup, suffix), record in records.items() if not suffix})
        if both_ends:
            self._again.append(records[runs[-1]]["tokens_per_s"])
        for setup in self.rounds[-1]:
            emitted, cycles = self._counts.get(setup, (0, 0))
            record = records[setup, ""]
            self._counts[setup] = (emitted + record["emitted"], cycles + record["cycles"])

    def unbeaten(self) -> list[Setup]:
        """Those that the fastest does not beat, after it."""
        noise = noise_of(self.rounds, self._again, least=self._least_noise)
        return unbeaten(self.rounds, self._again, parts=self._parts, noise=noise)

    def choice(self) -> Choice:
        """What to use."""
        return choose(self.rounds, self._again, parts=self._parts, least_noise=self._least_noise)

    def rates(self) -> dict[Setup, list[float]]:
        """Tokens a second of each setup's rounds."""
        return {setup: [each[setup] for each in self.rounds if setup in each] for setup in self.rounds[0]}

    def accept_lengths(self) -> dict[Setup, float]:
        """Tokens a cycle of each setup's rounds."""
        lengths = {setup: emitted / max(1, cycles) for setup, (emitted, cycles) in self._counts.items()}
        return {**lengths, PLAIN_SETUP: 1.0}
