"""Write the trained draft as the world loads it, with a card that says how it was made and what it gives."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from slipstream.config.model import ModelConfig
from slipstream.draft.checkpoint import save_draft
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.train.accept import Measured
from slipstream.train.journal import read_journal
from slipstream.train.teacher import DraftVocabulary

CURVE = "curve.png"


def export(
    path: Path,
    draft: Eagle3Draft,
    vocabulary: DraftVocabulary,
    *,
    target: ModelConfig,
    target_name: str,
    recipe: Mapping[str, Any],
    measured: Mapping[str, Measured],
    journal: Path,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Weights, config, card, and a curve where matplotlib is there."""
    records = read_journal(journal, "measured")
    drawn = draw_curve(path / CURVE, records)
    card = model_card(target_name, recipe, measured, records, curve=drawn)
    save_draft(path, draft, vocabulary.ids_V, target=target, dtype=dtype, card=card)


def model_card(
    target_name: str,
    recipe: Mapping[str, Any],
    measured: Mapping[str, Measured],
    records: list[dict[str, Any]],
    *,
    curve: bool,
) -> str:
    """The README.md of a draft."""
    lines = [
        f"# EAGLE-3 draft for {target_name}",
        "",
        "One decoder layer that drafts for the target; trained by `slipstream train` on the target's own answers.",
        "It holds no embeddings (the target's are used) and maps its vocabulary by `d2t` / `t2d`.",
        "",
        "## Accept length (greedy chain, emitted / cycles, the target's own token included, the prefill's excluded)",
        "",
        "| set | accept length | acceptance by position | until first repeated 16-gram | loop rate |",
        "|---|---|---|---|---|",
    ]
    for name, found in measured.items():
        positions = " ".join(f"{share:.2f}" for share in found.whole.by_position)
        lines.append(
            f"| {name} | {found.whole.accept_length:.3f} | {positions} | {found.until_loop.accept_length:.3f} |"
            f" {found.loop_rate:.2f} |"
        )
    lines += ["", "## Curve", "", *([f"![accept length over answer tokens]({CURVE})", ""] if curve else [])]
    lines += ["| set | answer tokens seen | seconds | accept length |", "|---|---|---|---|"]
    lines += [
        f"| {row['set']} | {row['answer_tokens']:,} | {row['seconds']:.0f} | {row['accept_length']:.3f} |"
        for row in records
    ]
    lines += ["", "## Recipe", "", "| choice | value |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in recipe.items()]
    return "\n".join(lines) + "\n"


def draw_curve(path: Path, records: list[dict[str, Any]]) -> bool:
    """Accept length over answer tokens, one line a set; whether it was drawn."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional package
    except ImportError:
        return False
    if not records:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    axes = (figure := Figure(figsize=(6, 4), layout="constrained")).add_subplot()
    for name in dict.fromkeys(record["set"] for record in records):
        rows = [record for record in records if record["set"] == name]
        axes.plot(
            [row["answer_tokens"] / 1e6 for row in rows], [row["accept_length"] for row in rows], "o-", label=name
        )
    axes.set_xlabel("million answer tokens seen")
    axes.set_ylabel("accept length")
    axes.legend()
    figure.savefig(path, dpi=110)
    return True
