"""The table of `slipstream bench latency`, made from the same rows that go into files."""

from collections.abc import Sequence

from slipstream.bench.baseline import Row
from slipstream.bench.definitions import define
from slipstream.bench.latency import WARM_UP
from slipstream.bench.latency_rates import Rates
from slipstream.cli.show import stdout_console, table

SHOWN = ("cycle_ms", "cycle_p90_ms", "cycle_spread_ms", "tb_per_s", "share_of_floor", "cycle_ratio")
LEGEND = (
    *("steps", "batch", "context", *SHOWN, "break_even_accept_length", "cycle_bytes", "floor_ms", "plain_step_ms"),
    *("decreed_accept_length", "read_tb_per_s", "copy_tb_per_s", "fingerprint"),
)


def print_latency(rows: Sequence[Row], rates: Rates) -> None:
    """The machine's rates, one line a cell, then what the names mean."""
    console, first = stdout_console(), rows[0]
    console.print(
        f"{first['settings']['model']} ({first['settings']['weights']} weights), {first['settings']['dtype']}, tp"
        f" {first['settings']['tp']}, draft {rows[-1]['draft']} at {rows[-1]['draft_placement']}, {first['hardware']}"
    )
    console.print(f"read rate {rates.read / 1e12:.3g} TB/s, copy rate {rates.copy / 1e12:.3g} TB/s; measured first")
    console.print()
    columns = ["K", "bs", "context", "ms", "p90 ms", "quartile spread ms", "TB/s", "share of floor", "R = break-even"]
    beside = "speedup_over_baseline" in first
    lines = [_line(row) + ([_number(row["speedup_over_baseline"])] if beside else []) for row in rows]
    console.print(table([*columns, *(["speed-up over baseline"] if beside else [])], lines))
    console.print()
    console.print(f"settings {first['fingerprint']}: " + ", ".join(_settings_words(first["settings"])))
    console.print(f"each cell after {WARM_UP} cycles of warm-up; plain steps of the same run and settings stand at K 0")
    names = (*LEGEND, *(("baseline_cycle_ms", "speedup_over_baseline") if beside else ()))
    for line in define(names):
        console.print(line)


def _line(row: Row) -> list[str]:
    return [
        str(row["steps"]),
        str(row["batch"]),
        str(row["context"]),
        f"{row['cycle_ms']:.3f}",
        f"{row['cycle_p90_ms']:.3f}",
        f"{row['cycle_spread_ms']:.3f}",
        f"{row['tb_per_s']:.3g}",
        f"{row['share_of_floor']:.3f}",
        f"{row['cycle_ratio']:.3f}" if row["steps"] else "1",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _settings_words(settings: Row) -> list[str]:
    return [f"{name} {value}" for name, value in settings.items() if value not in ("", None)]
