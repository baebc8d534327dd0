"""What a run tells: lines on the terminal, and the same as JSON."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slipstream.train.accept import Measured
from slipstream.train.objective import Scores
from slipstream.train.rate import Progress

Say = Callable[[str], None]


class Journal:
    """Appends to train.jsonl and says each line."""

    def __init__(self, path: Path | None, *, say: Say = print) -> None:
        self.path, self.say = path, say

    def write(self, kind: str, values: Mapping[str, Any], text: str) -> None:
        """Keep one record and say it."""
        self.say(text)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, **values}) + "\n")

    def step(self, scores: Scores, progress: Progress, *, lr: float, tokens_per_second: float) -> None:
        """One training step."""
        losses, top1 = _rounded(scores.losses_K.tolist()), _rounded(scores.top1_K.tolist())
        values = {
            "step": progress.step,
            "epoch": progress.epoch,
            "seconds": round(progress.seconds, 1),
            "tokens": progress.tokens,
            "answer_tokens": progress.answer_tokens,
            "loss": round(float(scores.loss.detach()), 5),
            "losses": losses,
            "top1": top1,
            "forced_accept_length": round(float(scores.accept_length), 4),
            "lr": lr,
            "tokens_per_second": round(tokens_per_second),
            "skipped": progress.skipped,
        }
        text = (
            f"step {progress.step:5d}  {progress.seconds:6.0f} s  loss {values['loss']:.4f}  top-1 "
            f"{' '.join(f'{share:.2f}' for share in top1)}  forced accept length {values['forced_accept_length']:.2f}  "
            f"lr {lr:.1e}  {tokens_per_second:,.0f} tok/s"
        )
        self.write("step", values, text)

    def measured(self, name: str, found: Measured, progress: Progress) -> None:
        """One walk over held-out answers."""
        values = {
            "set": name,
            "step": progress.step,
            "seconds": round(progress.seconds, 1),
            "tokens": progress.tokens,
            "answer_tokens": progress.answer_tokens,
            "accept_length": round(found.whole.accept_length, 4),
            "acceptance_by_position": _rounded(found.whole.by_position),
            "accept_length_until_loop": round(found.until_loop.accept_length, 4),
            "loop_rate": round(found.loop_rate, 4),
            "cycles": found.whole.cycles,
        }
        positions = " ".join(f"{share:.2f}" for share in found.whole.by_position)
        text = (
            f"  {name}: accept length {found.whole.accept_length:.3f}  acceptance by position {positions}  until first "
            f"loop {found.until_loop.accept_length:.3f}  loop rate {found.loop_rate:.2f}"
        )
        self.write("measured", values, text)


def read_journal(path: Path, kind: str) -> list[dict[str, Any]]:
    """Records of one kind, in order."""
    if not path.is_file():
        return []
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return [record for record in records if record["kind"] == kind]


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 4) for value in values]
