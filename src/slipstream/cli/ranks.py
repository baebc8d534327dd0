"""What a terminal shows of a group when it has come up; all on stderr."""

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

import slipstream
from slipstream.cli.show import PIPE_WIDTH, table

MIB = 1 << 20
PARTS = {0: "none", 1: "whole"}  # of the draft, by the ranks it is cut over


def show_start(llm: "slipstream.LLM") -> None:
    """Print where the draft is and what each rank holds, and whatever makes answers or times special."""
    started = llm.started
    if started.warning is not None:
        _say(f"warning: {started.warning}")
    if started.wanted.target.path is None:
        _say("dummy weights: the models are random, and the answers mean nothing")
    if llm.synthetic_accept_length is not None:
        _say(
            f"synthetic accept length {llm.synthetic_accept_length:g}: acceptance is decreed to time cycles, and the"
            " answers mean nothing"
        )
    if llm.tp == 1:
        return
    width = None if sys.stderr.isatty() else PIPE_WIDTH
    console = Console(file=sys.stderr, width=width, highlight=False, markup=False)
    if started.choice is not None:
        console.print(trials_table(started.choice))
    shares = llm.shares()
    console.print(shares_table(shares))
    _say(f"{llm.tp} ranks were up after {llm.load_s:.1f} s")
    if shares[0].all_reduce:
        ways = ", ".join(f"{size:,} bytes {way} {us:.1f} us" for size, way, us in shares[0].all_reduce)
        _say(f"all-reduce: {ways}")


def show_trial(placement: object) -> None:
    """Say which placement is being timed."""
    _say(f"timing the draft's placement: {placement}")


def trials_table(choice: Any) -> Table:
    """What `--draft-tp auto` timed; the row that was kept is marked."""
    rows = []
    for trial in choice.trials:
        kept = trial.placement == choice.placement
        word = ("tie, kept as the smaller" if choice.tied else "kept") if kept else trial.obstacle
        times = ["-", "-"] if trial.obstacle else [f"{trial.cycle_s * 1e3:.2f}", f"{trial.spread_s * 1e3:.2f}"]
        rows.append([str(trial.placement), *times, word])
    return table(["draft placement", "cycle ms", "quartiles apart ms", ""], rows, texts=[""])


def shares_table(shares: Sequence[Any]) -> Table:
    """What every rank holds, in MiB, and the shapes of its shards of the draft, each list of them once."""
    rows = []
    first: dict[str, int] = {}  # rank, by shapes
    for share in shares:
        shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in share.shards)
        shapes += " (the target's)" if share.shares_embedding else ""
        same = first.setdefault(shapes, share.rank)
        rows.append(
            [
                str(share.rank),
                f"{share.host} {share.device}",
                f"{share.target_bytes / MIB:.1f}",
                f"{share.draft_bytes / MIB:.1f}",
                f"{share.kv_bytes / MIB:.1f}",
                PARTS.get(share.draft_group, f"1/{share.draft_group}"),
                f"as rank {same}" if shapes and same != share.rank else shapes,
            ]
        )
    columns = ["rank", "device", "target MiB", "draft MiB", "KV MiB", "draft", "its shards"]
    return table(columns, rows, texts=["device", "draft", "its shards"])


def shares_rows(shares: Sequence[Any]) -> list[dict[str, Any]]:
    """The same under its names, for JSON."""
    names = ("rank", "host", "device", "target_bytes", "draft_bytes", "kv_bytes", "draft_group", "shares_embedding")
    names += ("all_reduce", "reruns", "graphs")
    return [{**{name: getattr(share, name) for name in names}, "shards": dict(share.shards)} for share in shares]


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)
