"""What `slipstream tune` prints: verdicts first, then the evidence, the curve, and what the names mean."""

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.bench.definitions import define
from slipstream.bench.tune import Tuned
from slipstream.bench.tune_plot import text_curve
from slipstream.bench.tune_rows import CONFIRMED_NAMES, verdict
from slipstream.cli.show import stdout_console, table

Row = Mapping[str, Any]
COLUMNS = ("steps", "topk", "draft tokens", "draft", "accept length", "cycle ms", "predicted tok/s")
REAL_COLUMNS = ("rounds", "real tok/s", "spread", "real accept length", "over plain")
SHOWN = 12  # setups a batch, the most promising ones
LEGEND = (
    *("steps", "topk", "draft_tokens", "placement", "predicted_accept_length", "cycle_ms", "predicted_tokens_per_s"),
    *CONFIRMED_NAMES,
    *("noise", "num_shapes", "num_timed", "seconds"),
)


def print_tuned(rows: Sequence[Row], found: Tuned) -> None:
    """Everything; the last row is the summary."""
    console, last = stdout_console(), rows[-1]
    for batch in found.choices:
        console.print(verdict(found, batch))
    console.print()
    for batch in found.choices:
        mine = [row for row in rows[:-1] if row["batch"] == batch]
        mine.sort(key=lambda row: (row["gain_over_plain"] or 0, row["predicted_tokens_per_s"]), reverse=True)
        console.print(f"bs {batch}: the best {min(SHOWN, len(mine))} of {len(mine)} timed setups")
        console.print(table((*COLUMNS, *REAL_COLUMNS), [_line(row) for row in mine[:SHOWN]]))
        console.print()
        for line in text_curve(rows[:-1], batch):
            console.print(line)
        console.print()
    seconds = ", ".join(f"{stage} {taken:.1f} s" for stage, taken in last["seconds"].items())
    console.print(f"{last['num_shapes']} shapes, {last['num_timed']} timed cycles; {seconds}; {last['hardware']}")
    for line in define(LEGEND):
        console.print(line)


def _line(row: Row) -> list[str]:
    real = ["-"] * len(REAL_COLUMNS)
    if row["gain_over_plain"] is not None:
        real = [
            str(row["confirmed_rounds"]),
            f"{row['confirmed_tokens_per_s']:.1f}",
            f"{row['confirmed_spread_tokens_per_s']:.1f}",
            f"{row['confirmed_accept_length']:.2f}",
            f"{row['gain_over_plain']:.3f}{' chosen' if row['chosen'] else ''}",
        ]
    return [
        str(row["steps"]),
        str(row["topk"]),
        str(row["draft_tokens"]),
        row["placement"] or "-",
        f"{row['predicted_accept_length']:.2f}",
        f"{row['cycle_ms']:.2f}",
        f"{row['predicted_tokens_per_s']:.1f}",
        *real,
    ]
