"""What `slipstream profile` prints: the verdict first, then the evidence, then what every name means.

All of it is read from the object that --json prints, so both hold the same numbers under the same names.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from slipstream.cli.show import positions, stdout_console, table

Object = Mapping[str, Any]

CURVE = ("tokens", "ms", "p90_ms", "over_one", "num_cycles")
STAGES = (
    "stage",
    "stage_ms",
    "stage_median_ms",
    "stage_p90_ms",
    "share_of_cycle",
    "communication_ms",
    "bytes",
    "flops",
    "stage_floor_ms",
    "stage_share_of_floor",
)
FIT = ("steps", "measured_ms", "fitted_ms", "residual_ms")
PLACES = ("placement", "draft_step_ms", "placement_draft_ms", "placement_cycle_ms")
CALLS = ("stage", "role", "op", "name", "count", "message_bytes", "us", "us_p90", "ms_per_cycle")
LENGTHS = ("steps", "accept_length")
TEXTS = ("stage", "role", "op", "name", "placement")
SHARES = ("share_of_cycle", "stage_share_of_floor")
SCALES = {"bytes": (1e6, "MB"), "flops": (1e9, "GF")}
LINES = (  # what stands in lines rather than tables
    *("judging_cycles", "served_cycle_ms", "host_hidden_ms", "device_idle_share"),
    *("wall_ms", "stage_sum_ms", "unexplained_share", "bare_cycle_ms", "marks_overhead", "read_tb_per_s"),
    *("plain_step_ms", "cycle_ms", "cycle_ratio", "break_even_accept_length", "draft_step_ms", "fit_a_ms", "fit_b_ms"),
    *("reading", "slope_ms", "jump_ms", "gain", "change_gain", "decreed_accept_length"),
)
ACCEPTED = (
    *("accept_length_at_steps", "accept_length_low", "accept_length_high"),
    *("acceptance_by_position", "accept_rate"),
)


def print_profile(told: Object) -> None:
    """Sentences, then tables."""
    console = stdout_console()
    verdict, *others = told["sentences"]
    console.print(verdict)
    for sentence in others:
        console.print(f"- {sentence}" if not sentence[:1].isdigit() else f"  {sentence}")
    console.print(f"\n{_subject(told)}")
    console.print("\nCOST, acceptance decreed:", "verify of n tokens, one request")
    _rows(console, CURVE, told["verify_curve"])
    console.print("\nstages of the profiled cycle, run one by one; times of rank 0")
    _rows(console, STAGES, told["stages"])
    console.print(_accounts(told))
    console.print(_judging(told))
    console.print("\ncycle over the number of steps")
    _rows(console, FIT, told["step_fit"])
    if told["draft_placements"]:
        console.print("\nthe draft in every placement")
        _rows(console, PLACES, told["draft_placements"])
    if told["collectives"]:
        console.print(f"\ncollectives of a cycle; {told['communication_source']}")
        _rows(console, CALLS, told["collectives"])
    _print_acceptance(console, told)
    console.print()
    for name, meaning in _legend(told):
        console.print(f"{name} = {meaning}")


def _subject(told: Object) -> str:
    shape = f"{told['steps']} steps, topk {told['topk']}, {told['draft_tokens']} draft tokens"
    return (
        f"{told['model']} ({told['weights']}), tp {told['tp']}, draft {told['draft_placement']}, {told['dtype']},"
        f" {told['hardware']}, {shape}, batch {told['batch']}, context {told['context']};"
        f" decreed_accept_length {told['decreed_accept_length']:.2f}; times: {told['time_source']}"
    )


def _accounts(told: Object) -> str:
    bare = told["bare_cycle_ms"]
    told_bare = "" if bare is None else f", bare_cycle_ms {bare:.3f}, marks_overhead {told['marks_overhead']:+.1%}"
    return (
        f"stage_sum_ms {told['stage_sum_ms']:.3f} of wall_ms {told['wall_ms']:.3f}, unexplained_share"
        f" {told['unexplained_share']:+.1%}{told_bare}; read_tb_per_s {told['read_tb_per_s']:.4g}"
    )


def _judging(told: Object) -> str:
    """The cycles that judge: as served, where that is another thing."""
    judging = (
        f"judging_cycles {told['judging_cycles']}: plain_step_ms {told['plain_step_ms']:.3f}, cycle_ms"
        f" {told['cycle_ms']:.3f}, cycle_ratio {told['cycle_ratio']:.3f}"
    )
    if told["served_cycle_ms"] is None:
        return judging
    return (
        f"{judging}; served_cycle_ms {told['served_cycle_ms']:.3f}, host_hidden_ms {told['host_hidden_ms']:.3f},"
        f" device_idle_share {told['device_idle_share']:.1%}"
    )


def _print_acceptance(console: Console, told: Object) -> None:
    """The other section: never mixed with cost."""
    found = told["acceptance"]
    if found is None:
        console.print(f"\nACCEPTANCE on real prompts: none; {told['reason']}")
        return
    interval = f"({found['accept_length_low']:.2f} to {found['accept_length_high']:.2f})"
    console.print(
        f"\nACCEPTANCE on real prompts ({told['prompts']}, {found['num_answers']} answers, {found['cycles']} cycles,"
        f" temperature 0, {found['accept_steps']} steps drafted): accept_length_at_steps"
        f" {found['accept_length_at_steps']:.2f} {interval}, accept_rate {found['accept_rate']:.2f},"
        f" acceptance_by_position {positions(found['acceptance_by_position'])}"
    )
    _rows(console, LENGTHS, found["accept_lengths"])


def _rows(console: Console, columns: Sequence[str], rows: Sequence[Object]) -> None:
    names = [f"{name} {SCALES[name][1]}" if name in SCALES else name for name in columns]
    cells = [[_cell(name, row[name]) for name in columns] for row in rows]
    console.print(table(names, cells, texts=[name for name in columns if name in TEXTS]))


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in SHARES:
        return f"{value:.1%}"
    if name in SCALES:
        return f"{value / SCALES[name][0]:,.2f}"
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _legend(told: Object) -> list[tuple[str, str]]:
    """Every name that was printed, once."""
    shown = [*CURVE, *STAGES, *FIT, *LINES]
    shown += PLACES if told["draft_placements"] else ()
    shown += CALLS if told["collectives"] else ()
    shown += [*LENGTHS, *ACCEPTED] if told["acceptance"] is not None else ()
    definitions = told["definitions"]
    return [(name, definitions[name]) for name in dict.fromkeys(shown) if name in definitions]
