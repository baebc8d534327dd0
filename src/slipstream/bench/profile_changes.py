"""What would change the speed, and by how much: each from a formula whose numbers were measured. Pure functions.

T is the cycle, AL the accept length; tokens a second go as AL / T, so a gain is (AL' / T') / (AL / T) - 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.bench.profile_sums import Fit, StageRow
from slipstream.bench.spans import HOST, VERIFY, is_draft
from slipstream.config.placement import Placement

REACHABLE = 0.8  # of the read rate: what good kernels keep over a whole forward
BETTER = 0.1  # on every position's acceptance
WORTH = 0.005  # smaller gains are not listed
GAP = 0.01  # of the cycle: a smaller host's part cannot be told from noise between recorded and served cycles


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing to do."""

    change: str
    gain: float  # of tokens a second over the cycle that was profiled
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the changes are computed from."""

    steps: int
    cycle_ms: float
    cycles_ms: Mapping[int, float]  # T by number of steps, 0 = plain, as measured
    lengths: Mapping[int, float]  # AL by number of steps
    better_length: float  # AL with every acceptance higher by BETTER
    length_word: str  # measured or decreed
    plain_verify_ms: float  # the verify stage of a plain step
    stages: Sequence[StageRow]  # of the cycle that judges: the host's is what the device waits for it
    runs_ahead: bool  # the host's work overlaps the device's already
    fit: Fit
    places: Mapping[Placement, Fit]
    place: str


def best_changes(facts: Facts, *, most: int = 3) -> list[Change]:
    """The changes worth most, the largest gain first."""
    makers: tuple[Callable[[Facts], Change | None], ...] = (
        _best_steps,
        _better_draft,
        _other_place,
        _no_host,
        _faster_wire,
        _flat_verify,
        _verify_reads,
        _draft_reads,
    )
    found = [change for make in makers if (change := make(facts)) is not None and change.gain >= WORTH]
    return sorted(found, key=lambda change: -change.gain)[:most]


def _best_steps(facts: Facts) -> Change | None:
    """The number of steps with the most tokens a second."""
    rates = {k: facts.lengths[k] / ms for k, ms in facts.cycles_ms.items() if k in facts.lengths}
    if facts.steps not in rates:
        return None
    best = max(rates, key=rates.__getitem__)
    then = f"AL({best}) / T({best}) = {facts.lengths[best]:.2f} / {facts.cycles_ms[best]:.2f} ms"
    now = f"{facts.lengths[facts.steps]:.2f} / {facts.cycles_ms[facts.steps]:.2f} ms"
    name = f"--steps {best}" if best else "decode plainly (--steps 0)"
    return Change(
        change=name,
        gain=rates[best] / rates[facts.steps] - 1,
        formula=f"{then} beside {now}, AL {facts.length_word}",
    )


def _better_draft(facts: Facts) -> Change | None:
    """More training, seen as acceptance."""
    if facts.steps not in facts.lengths:
        return None
    now = facts.lengths[facts.steps]
    formula = f"AL' / AL = {facts.better_length:.2f} / {now:.2f}, AL {facts.length_word}"
    name = f"a better draft: +{BETTER:g} acceptance at every position"
    return Change(change=name, gain=facts.better_length / now - 1, formula=formula)


def _other_place(facts: Facts) -> Change | None:
    """Another placement of the draft, both read from lines over K."""
    here = next((fit for place, fit in facts.places.items() if str(place) == facts.place), None)
    if here is None:
        return None
    place, fit = min(facts.places.items(), key=lambda each: each[1].at(facts.steps))
    now, then = here.at(facts.steps), fit.at(facts.steps)
    name = f"--draft-tp {place.ranks if not place.replicated else 'replicated'}"
    return Change(change=name, gain=now / then - 1, formula=f"T / T' = {now:.2f} / {then:.2f} ms")


def _no_host(facts: Facts) -> Change | None:
    """Host work beside the device's, as far as it is not there yet."""
    gap = sum(row.ms for row in facts.stages if row.label == HOST)
    if gap < GAP * facts.cycle_ms:
        return None
    if facts.runs_ahead:
        name = "no host gap: overlap the rest of the host's work with the device's"
        return _saved(facts, name, gap, "the device's wait in a served cycle")
    return _saved(facts, "no host gap: overlap the host's work with the device's", gap, "the host gap")


def _faster_wire(facts: Facts) -> Change:
    """Tuned collectives."""
    half = sum(row.communication_ms for row in facts.stages) / 2
    return _saved(facts, "collectives in half their time (doctor nccl, tuned NCCL)", half, "half of communication")


def _flat_verify(facts: Facts) -> Change:
    """A verify that costs what a plain step's does."""
    verify = sum(row.ms for row in facts.stages if row.label == VERIFY)
    over = verify - facts.plain_verify_ms
    return _saved(
        facts,
        "verify all rows at the price of one",
        over,
        f"V(n) - V(1) = {verify:.2f} - {facts.plain_verify_ms:.2f} ms",
    )


def _verify_reads(facts: Facts) -> Change:
    """A verify near its floor."""
    rows = [row for row in facts.stages if row.label == VERIFY]
    return _saved(facts, f"verify at {REACHABLE:.0%} of the read rate", _above_floor(rows), "verify's distance from it")


def _draft_reads(facts: Facts) -> Change:
    """A draft near its floor."""
    rows = [row for row in facts.stages if is_draft(row.label)]
    name = f"draft steps at {REACHABLE:.0%} of the read rate"
    return _saved(facts, name, _above_floor(rows), "the draft's distance from it")


def _above_floor(rows: Sequence[StageRow]) -> float:
    return sum(max(0.0, row.ms - row.floor_ms / REACHABLE) for row in rows if row.floor_ms is not None)


def _saved(facts: Facts, name: str, saved_ms: float, what: str) -> Change:
    """A shorter cycle with the same accept length."""
    saved_ms = min(max(saved_ms, 0.0), 0.99 * facts.cycle_ms)
    left = facts.cycle_ms - saved_ms
    formula = f"T / (T - {saved_ms:.2f} ms) = {facts.cycle_ms:.2f} / {left:.2f} ms, {what}"
    return Change(change=name, gain=facts.cycle_ms / left - 1, formula=formula)
