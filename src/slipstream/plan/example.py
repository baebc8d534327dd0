"""The founding case worked by hand: Kimi-K2.5 on eight PCIe cards, two readings of its numbers, what separates them.

Both readings are V(n) = level + slope x D(n), with D(n) the distinct experts of n rows that choose independently, and a
cycle of K steps lasts V(K + 1) + CYCLE_MS + K x DRAFT_MS. Accept lengths follow from one at five steps by constant
conditional acceptance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slipstream.plan.accept import chain_length, constant_p
from slipstream.plan.cost import Free, Load, distinct_experts
from slipstream.plan.models import Shape, named_model

NAME = "kimi-k2.5-pcie"
MODEL = "kimi-k2.5"
ACCEPT_LENGTH, AT_STEPS = 2.1, 5
CYCLE_MS, DRAFT_MS = 0.64, 0.16  # beside verify: a cycle's own, and a draft step cut over eight ranks
PUBLISHED: Mapping[str, float] = {"plain": 90.0, "K = 5": 71.3, "K = 2": 94.0}  # tokens a second
VERIFY_MS = (21.0, 28.0)
WIRE_MS = 3.3  # 122 all-reduces at 50 us instead of 25: NCCL as it comes
ROWS = (1, 2, 3, 4, 6, 11)
INDEPENDENT = replace(Free(), rho=0.0, rho_batch=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One explanation of the case's numbers."""

    name: str
    says: str
    level_ms: float
    slope_ms: float  # of a distinct expert of every layer
    verify_only_ms: float = 0.0  # of a forward of more than one row
    untuned_ms: float = 0.0  # before NCCL was tuned

    def forward_ms(self, rows: int, *, tuned: bool, shape: Shape) -> float:
        """V(n)."""
        experts = distinct_experts(shape, Load(requests=1, rows=rows), INDEPENDENT)
        more = (self.verify_only_ms if rows > 1 else 0.0) + (0.0 if tuned else self.untuned_ms)
        return self.level_ms + self.slope_ms * experts + more

    def tokens_per_s(self, steps: int, *, tuned: bool, shape: Shape, accept_length: float = ACCEPT_LENGTH) -> float:
        """Speed at K steps, accept length at other K by constant conditional acceptance."""
        if steps == 0:
            return 1e3 / self.forward_ms(1, tuned=tuned, shape=shape)
        length = chain_length(constant_p(accept_length, AT_STEPS), steps)
        cycle = self.forward_ms(steps + 1, tuned=tuned, shape=shape) + CYCLE_MS + DRAFT_MS * steps
        return 1e3 * length / cycle

    def forward(self) -> str:
        """V(n) as a formula."""
        parts = f"{self.level_ms:g} + {self.slope_ms:g} D(n)"
        parts += f" + {self.verify_only_ms:g} for n > 1" if self.verify_only_ms else ""
        return parts + (f" + {self.untuned_ms:g} before NCCL was tuned" if self.untuned_ms else "")


READINGS: Sequence[Reading] = (
    Reading(
        name="H1",
        says="experts are read slowly, at 24% of the memory's bandwidth: each further row costs",
        level_ms=8.2,
        slope_ms=0.434,
    ),
    Reading(
        name="H2",
        says="experts are read as on this machine's twin, 45%; verify has a fixed cost that decoding has not, and NCCL"
        " was untuned at K = 5",
        level_ms=9.36,
        slope_ms=0.228,
        verify_only_ms=4.7,
        untuned_ms=WIRE_MS,
    ),
)


def worked() -> dict[str, object]:
    """The case as data: both readings' curves and speeds, what was seen, and what to measure."""
    shape = named_model(MODEL)
    return {
        "example": NAME,
        "published": {**PUBLISHED, "verify ms, lowest": VERIFY_MS[0], "verify ms, highest": VERIFY_MS[1]},
        "accept_length": ACCEPT_LENGTH,
        "readings": [_row(each, shape) for each in READINGS],
        "measurement": measurement(shape),
    }


def _row(reading: Reading, shape: Shape) -> dict[str, object]:
    curve = {n: reading.forward_ms(n, tuned=True, shape=shape) for n in ROWS}
    return {
        "name": reading.name,
        "says": reading.says,
        "forward": reading.forward(),
        "verify_curve": {str(n): round(ms, 2) for n, ms in curve.items()},
        "by_steps": speeds(reading, shape),
        "first_row_ms": round(curve[2] - curve[1], 2),
        "rise_per_row_ms": round((curve[6] - curve[2]) / 4, 2),
    }


def speeds(reading: Reading, shape: Shape) -> dict[str, float]:
    """Tokens a second by K, NCCL tuned; K = 5 also as it was before."""
    found = {str(k): round(reading.tokens_per_s(k, tuned=True, shape=shape), 1) for k in range(6)}
    if reading.untuned_ms:
        found |= {f"{k}, untuned": round(reading.tokens_per_s(k, tuned=False, shape=shape), 1) for k in (0, 5)}
    return found


def measurement(shape: Shape) -> str:
    """What to time, and what each reading says of it."""
    told = []
    for reading in READINGS:
        row = _row(reading, shape)
        told.append(f"{reading.name}: V(2) - V(1) = {row['first_row_ms']} ms, then {row['rise_per_row_ms']} ms a row")
    return (
        "time V(1), V(2), V(3), V(6) one after the other under one NCCL setting (`slipstream profile` prints them): "
        + "; ".join(told)
    )
