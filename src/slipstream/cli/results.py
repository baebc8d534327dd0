"""Tables of `slipstream bench`, made from the same rows that go into files."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from slipstream.bench.cpu import PLAIN, SPECULATIVE, TRANSFORMERS
from slipstream.bench.definitions import define
from slipstream.cli.show import positions, stdout_console, table

Row = Mapping[str, Any]
LEGEND = (
    *("accept_length", "accept_length_mean_of_answers", "accept_rate", "acceptance_by_position"),
    *("acceptance_up_to_position", "histogram", "accept_length_by_steps", "loop_rate", "accept_length_until_loop"),
    *("steps", "topk", "draft_tokens", "vllm_num_speculative_tokens", "sglang_num_draft_tokens"),
)
PAIRED_LEGEND = ("difference", "difference_low", "difference_high", "num_better", "num_worse", "verdict")


def print_acceptance(rows: Sequence[Row], pairs: Sequence[Row] = ()) -> None:
    """One line a draft and temperature; then tasks, histograms, forecasts, pairs, and what the names mean."""
    console = stdout_console()
    console.print(acceptance_table(rows))
    console.print()
    console.print(task_table(rows))
    console.print()
    for row in rows:
        counts = ", ".join(f"{accepted}: {cycles}" for accepted, cycles in enumerate(row["histogram"]))
        console.print(f"{_name(row)}: cycles by accepted tokens {counts}")
        if row["accept_length_by_steps"]:
            forecast = ", ".join(f"{k}: {found:.2f}" for k, found in enumerate(row["accept_length_by_steps"], 1))
            console.print(f"{_name(row)}: accept length by steps, forecast {forecast}")
    console.print()
    console.print(shape_line(rows[0]))
    for pair in pairs:
        console.print(f"T {pair['temperature']:g}: {pair['verdict']}")
    console.print()
    for line in define((*LEGEND, *(PAIRED_LEGEND if pairs else ()))):
        console.print(line)


def shape_line(row: Row) -> str:
    """The cycle's shape as we, vLLM and SGLang name it."""
    theirs = row["vllm_num_speculative_tokens"]
    vllm = "no vLLM name for a tree" if theirs is None else f"vLLM's num_speculative_tokens {theirs}"
    return (
        f"steps {row['steps']}, topk {row['topk']}, draft tokens {row['draft_tokens']} = {vllm}, SGLang's"
        f" num_draft_tokens {row['sglang_num_draft_tokens']}"
    )


def acceptance_table(rows: Sequence[Row]) -> Table:
    """Numbers over all answers."""
    columns = (
        "draft",
        "answers",
        "accept length",
        "mean of answers",
        "accept rate",
        "acceptance by position",
        "loop rate",
    )
    lines = [
        [
            _name(row),
            str(row["num_answers"]),
            f"{row['accept_length']:.2f}",
            f"{row['accept_length_mean_of_answers']:.2f}",
            f"{row['accept_rate']:.2f}",
            positions(row["acceptance_by_position"]),
            f"{row['loop_rate']:.2f}",
            f"{row['accept_length_until_loop']:.2f}",
        ]
        for row in rows
    ]
    return table((*columns, "accept length until loop"), lines)


def task_table(rows: Sequence[Row]) -> Table:
    """Accept length of each task, a column a draft and temperature."""
    tasks = rows[0]["accept_length_by_task"]
    lines = [[task, *(f"{row['accept_length_by_task'][task]:.2f}" for row in rows)] for task in tasks]
    return table(("accept length by task", *map(_name, rows)), lines)


def print_cpu(row: Row) -> None:
    """Speeds, costs of the parts, and where speculation breaks even."""
    console = stdout_console()
    console.print(speed_table(row))
    console.print()
    console.print(verify_table(row))
    console.print()
    console.print(f"{row['hardware']}, {row['threads']} threads, fp32, {row['num_prompts']} prompts one at a time")
    for line in cycle_lines(row):
        console.print(line)


def speed_table(row: Row) -> Table:
    """Contenders, with ratios and whether their answers are the same."""
    rates: Mapping[str, float] = row["tokens_per_s"]
    lines = []
    for name in (TRANSFORMERS, PLAIN, SPECULATIVE):
        if name in rates:
            rounds = row["tokens_per_s_by_round"][name]
            lines.append(
                [
                    name,
                    f"{rates[name]:.1f}",
                    f"{min(rounds):.1f}-{max(rounds):.1f}",
                    _ratio(rates, name, TRANSFORMERS),
                    _ratio(rates, name, PLAIN),
                    f"{row['answers_equal_to_plain'][name]} of {row['num_prompts']}",
                ]
            )
    columns = ("decoding", "tok/s", "spread of rounds", "beside transformers", "beside plain", "answers equal to plain")
    return table(columns, lines)


def verify_table(row: Row) -> Table:
    """What verifying n rows costs."""
    counts = list(row["verify_ms"])
    return table(
        ("rows verified", *counts),
        [
            ["ms", *(f"{row['verify_ms'][count]:.1f}" for count in counts)],
            ["beside one row", *(f"{row['verify_ratio'][count]:.2f}" for count in counts)],
        ],
    )


def cycle_lines(row: Row) -> list[str]:
    """The cycle beside its parts, and the accept length beside the one it needs."""
    if "cycle_ms" not in row:
        return []
    gain = row["accept_length"] / row["cycle_ratio"]
    return [
        f"plain step {row['plain_step_ms']:.1f} ms; cycle {row['cycle_ms']:.1f} ms, its parts add up to"
        f" {row['parts_ms']:.1f} ms (a draft step takes {row['draft_step_ms']:.1f} ms)",
        f"cycle ratio R {row['cycle_ratio']:.2f} = break-even accept length; accept length {row['accept_length']:.2f};"
        f" speed-up = accept length / R = {gain:.2f}",
    ]


def _name(row: Row) -> str:
    return f"{row['draft']} T{row['temperature']:g}"


def _ratio(rates: Mapping[str, float], name: str, base: str) -> str:
    return f"{rates[name] / rates[base]:.2f}x" if base in rates else "-"
