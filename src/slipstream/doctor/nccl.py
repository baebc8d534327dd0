"""Does communication hold this machine back? The links, each way to all-reduce at a model's sizes, what to set."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from slipstream.doctor.advice import Advice, advise
from slipstream.doctor.collectives import CollectiveRow, DraftShape, Placing, TargetShape, collectives_of_cycle
from slipstream.doctor.latency import CPU_SETTINGS, CUDA_SETTINGS, Latency, Setting
from slipstream.doctor.links import Link, read_links, read_rates

ROWS = (1, 2, 4, 6, 16, 64)  # a decode step, verifies, batches of them
PREFILL_ROWS = 512
ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclReport:
    """Everything the verb prints."""

    shape: str
    tp: int
    device: str  # cuda or cpu
    steps: int
    links: tuple[Link, ...]
    nvlink_gb_per_s: dict[int, float]  # by GPU
    rows: tuple[int, ...]  # of hidden states in a message
    sizes: tuple[int, ...]  # bytes of those
    latencies: tuple[Latency, ...]
    plain: tuple[CollectiveRow, ...]  # a plain decode step's collectives
    cycle: tuple[CollectiveRow, ...]
    advice: tuple[Advice, ...]

    def as_row(self) -> dict[str, Any]:
        """The same in plain JSON types."""
        row = asdict(self, dict_factory=_plain)
        return {"doctor": "nccl", **row}


def examine(
    config: TargetShape,
    *,
    shape: str,
    tp: int,
    device: str,
    draft: DraftShape,
    placing: Placing,
    steps: int,
    measure: Callable[[Setting, Sequence[int]], Latency],
    rows: Sequence[int] = (*ROWS, PREFILL_ROWS),
) -> NcclReport:
    """Measure every setting at this shape's sizes, and do the arithmetic of a cycle.

    measure: times a setting at some sizes in bytes.
    """
    settings = CPU_SETTINGS if device == "cpu" else CUDA_SETTINGS
    sizes = tuple(config.hidden_size * ELEMENT_BYTES * each for each in rows)
    latencies = [measure(setting, sizes) for setting in settings]
    plain = collectives_of_cycle(config, draft, placing, 0, tp)
    cycle = collectives_of_cycle(config, draft, placing, steps, tp)
    return NcclReport(
        shape=shape,
        tp=tp,
        device=device,
        steps=steps,
        links=read_links() if device == "cuda" else (),
        nvlink_gb_per_s=read_rates() if device == "cuda" else {},
        rows=tuple(rows),
        sizes=sizes,
        latencies=tuple(latencies),
        plain=plain,
        cycle=cycle,
        advice=advise(latencies, sizes=sizes, plain=plain, cycle=cycle, tp=tp),
    )


def _plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Enum) else value for name, value in pairs}
