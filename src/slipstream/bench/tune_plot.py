"""The U-curve of a tuned pair: tokens a second over steps, as text and as a PNG; a gain above 1 pays."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
WIDTH = 48  # characters of the longest bar
BAR, PLAIN_MARK = "#", "|"


def text_curve(rows: Sequence[Row], batch: int) -> list[str]:
    """Bars of the best setup of each number of steps; the mark `|` stands where plain decoding ends."""
    best = best_by_steps(rows, batch)
    top = max(row["predicted_tokens_per_s"] for row in best)
    plain = round(best[0]["predicted_tokens_per_s"] / top * WIDTH)
    lines = [f"bs {batch}: predicted tokens a second of the best setup by steps; {PLAIN_MARK} = plain decoding"]
    for row in best:
        length = round(row["predicted_tokens_per_s"] / top * WIDTH)
        bar = "".join(BAR if place < length else " " for place in range(WIDTH + 1))
        bar = bar[:plain] + PLAIN_MARK + bar[plain + 1 :]
        shape = "plain" if not row["steps"] else f"{row['steps']}x{row['topk']}x{row['draft_tokens']}"
        mark = " <- chosen" if row["chosen"] else ""
        lines.append(f"K {row['steps']:>2} {bar} {row['predicted_tokens_per_s']:8.1f}  {shape}{mark}")
    return lines


def best_by_steps(rows: Sequence[Row], batch: int) -> list[Row]:
    """Of each number of steps the setup that was chosen, else the one that promises most."""
    mine = [row for row in rows if row["batch"] == batch]
    order = {steps: [row for row in mine if row["steps"] == steps] for steps in sorted({row["steps"] for row in mine})}
    return [max(each, key=lambda row: (row["chosen"], row["predicted_tokens_per_s"])) for each in order.values()]


def draw_curve(path: Path, rows: Sequence[Row], *, title: str) -> bool:
    """Speed over plain decoding by steps: chains and trees predicted, real runs as rings; whether it was drawn.

    Without matplotlib nothing is.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional package
    except ImportError:
        return False
    axes = (figure := Figure(figsize=(7, 4.5), layout="constrained")).add_subplot()
    for batch in sorted({row["batch"] for row in rows}):
        mine = [row for row in rows if row["batch"] == batch]
        plain = next(row for row in mine if not row["steps"])["predicted_tokens_per_s"]
        chains = best_by_steps([row for row in mine if row["topk"] == 1], batch)
        line = _plot(axes, chains, plain, "o-", label=f"bs {batch}, chain")
        trees = [row for row in mine if row["topk"] > 1]
        if trees:
            _plot(axes, best_by_steps(trees, batch), plain, "^--", label=f"bs {batch}, best tree", color=line)
        real = [row for row in mine if row["gain_over_plain"] is not None]
        gains = [row["gain_over_plain"] for row in real]
        axes.plot([row["steps"] for row in real], gains, "o", mfc="none", ms=11, color=line, label="real runs")
    axes.axhline(1.0, color="grey", linewidth=1)
    axes.set_xlabel("steps (draft forwards a cycle; 0 = plain decoding)")
    axes.set_ylabel("tokens a second over plain decoding")
    axes.set_title(title)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return True


def _plot(axes: Any, rows: Sequence[Row], plain: float, style: str, *, label: str, color: str | None = None) -> str:
    speeds = [row["predicted_tokens_per_s"] / plain for row in rows]
    (line,) = axes.plot([row["steps"] for row in rows], speeds, style, label=label, color=color)
    return line.get_color()
