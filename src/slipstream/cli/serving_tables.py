"""The tables of `slipstream bench serving`, made from the same rows that go into files."""

from collections.abc import Sequence

from slipstream.bench.baseline import Row
from slipstream.bench.definitions import define
from slipstream.bench.serving.definitions import SERVING_DEFINITIONS
from slipstream.cli.show import stdout_console, table

LOAD = (
    *("completed", "failed", "request_throughput", "output_throughput", "output_throughput_per_user", "concurrency"),
    *("tokens_per_chunk", "accept_length"),
)
TIMES = (
    *("median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_itl_ms", "p99_itl_ms"),
    *("mean_inter_token_latency_ms", "median_e2el_ms"),
)
BARE = ("bare_cycle_before_ms", "bare_cycle_after_ms", "bare_tpot_ms", "tpot_over_bare", "chunk_over_bare")
BUSY_SHARE = 0.8  # of a processor: beyond it the client may be what is measured
LATE_SHARE = 0.1  # of the gap between chunks: the client's lag, median
GOAL = 0.05  # what serving may add to the bare cycle at concurrency 1


def print_serving(rows: Sequence[Row]) -> None:
    """Load, times, what serving adds, what there is to beware of, and what the names mean."""
    console, first = stdout_console(), rows[0]
    console.print(
        f"{first['model_id']} at {first['url']} ({first['backend']}), {first['endpoint']}, prompts: {first['prompts']},"
        f" max tokens {first['max_tokens']}{', EOS ignored' if first['ignore_eos'] else ''}, temperature"
        f" {first['temperature']:g}, request rate {first['request_rate']}"
    )
    goodput = ("request_goodput",) if first["goodput"] else ()
    bare = BARE if "bare_cycle_ms" in first else ()
    legend = ("bare_cycle_ms", *bare) if bare else ()
    for names in ((*LOAD, *goodput), TIMES, *((bare,) if bare else ())):
        console.print()
        console.print(table(("max_concurrency", *names), [_line(row, names) for row in rows]))
    console.print()
    for sentence in sentences(rows):
        console.print(sentence)
    console.print()
    for line in define(("max_concurrency", *LOAD, *goodput, *TIMES, *legend, "client_cpu_share"), SERVING_DEFINITIONS):
        console.print(line)


def sentences(rows: Sequence[Row]) -> list[str]:
    """What must be known beside the numbers."""
    first = rows[0]
    found = [
        f"accept length at concurrency {_cell(row['max_concurrency'])}: {row['accept_length_source']}" for row in rows
    ]
    if first["prompts"].startswith("random"):
        found.append("the prompts are random: accept length on them says nothing about real ones; give --prompts")
    if any(row["output_tokens_counted_by"] == "chunks" for row in rows):
        found.append("the server reports no usage: its chunks were counted as tokens, which are too few if it drafts")
    return [*found, *(_about_client(row) for row in rows), *_about_bare(rows)]


def _about_client(row: Row) -> str:
    lag, share, gap = row["client_lag_median_ms"], row["client_cpu_share"], row["mean_itl_ms"]
    says = (
        f"client at concurrency {_cell(row['max_concurrency'])}: {share:.0%} of a processor, its loop late by"
        f" {lag:.2f} ms (median), {row['client_lag_p99_ms']:.2f} (p99)"
    )
    if share > BUSY_SHARE or (gap is not None and lag > LATE_SHARE * gap):
        return f"{says}; WARNING: the client may be what was measured"
    return says


def _about_bare(rows: Sequence[Row]) -> list[str]:
    """TPOT at concurrency 1 beside the bare cycle."""
    found = []
    for row in rows:
        over = row.get("tpot_over_bare")
        if row["max_concurrency"] == 1 and over is not None:
            length = row["accept_length"] or 1
            found.append(
                f"TPOT at concurrency 1 is {row['mean_tpot_ms']:.3f} ms, {over:+.1%} beside the bare"
                f" {row['bare_tpot_ms']:.3f} ms (cycle {row['bare_cycle_ms']:.3f} ms / accept length {length:.3f}):"
                f" {_verdict(row)}"
            )
    return found


def _verdict(row: Row) -> str:
    """Whether serving adds no more than it may, as far as the machine was steady enough to tell."""
    before, after = row["bare_cycle_before_ms"], row["bare_cycle_after_ms"]
    moved = abs(after - before) / row["bare_cycle_ms"]
    if moved > GOAL:
        return f"INCONCLUSIVE, for the bare cycle itself moved by {moved:.1%} meanwhile"
    return f"{'within' if row['tpot_over_bare'] <= GOAL else 'NOT within'} {GOAL:.0%}"


def _line(row: Row, names: Sequence[str]) -> list[str]:
    return [_cell(row["max_concurrency"]), *(_cell(row[name]) for name in names)]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
