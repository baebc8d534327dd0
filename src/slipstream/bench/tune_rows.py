"""What tune found, as rows under their names, as sentences, and as the text of a `tuned.toml`."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from slipstream.bench.tune import Tuned
from slipstream.bench.tune_grid import PLAIN_SETUP, Setup
from slipstream.bench.tune_race import Choice
from slipstream.config.placement import REPLICATED
from slipstream.config.speculation import Speculation
from slipstream.config.tuned import tuned_toml

DISTURBED = 0.1  # noise above which a choice means little
CONFIRMED_NAMES = (
    "confirmed_rounds",
    "confirmed_tokens_per_s",
    "confirmed_spread_tokens_per_s",
    "confirmed_accept_length",
    "gain_over_plain",
)


def as_rows(found: Tuned) -> list[dict[str, Any]]:
    """One row a batch and setup that was timed, the cheap ones first."""
    rows = []
    for cost in found.costs:
        predicted = found.predicted(cost.batch)[cost.setup]
        shape, choice = cost.setup.shape, found.choices[cost.batch]
        rows.append(
            {
                "bench": "tune",
                "batch": cost.batch,
                "steps": shape.steps,
                "topk": shape.topk,
                "draft_tokens": shape.draft_tokens,
                "placement": cost.setup.placement or None,
                "predicted_accept_length": found.accept_lengths[shape],
                "cycle_ms": cost.cycle_ms,
                "cycle_spread_ms": cost.spread_ms,
                "predicted_tokens_per_s": predicted,
                **_confirmed(found, cost.batch, cost.setup),
                "noise": choice.noise,
                "chosen": cost.setup == choice.setup,
            }
        )
    return rows


def _confirmed(found: Tuned, batch: int, setup: Setup) -> dict[str, float | None]:
    rates = found.confirmed[batch].get(setup)
    if rates is None:
        return dict.fromkeys(CONFIRMED_NAMES)
    return {
        "confirmed_rounds": len(rates),
        "confirmed_tokens_per_s": median(rates),
        "confirmed_spread_tokens_per_s": max(rates) - min(rates),
        "confirmed_accept_length": found.confirmed_accept_lengths[batch][setup],
        "gain_over_plain": found.choices[batch].gains[setup],
    }


def summary(found: Tuned, *, num_shapes: int) -> dict[str, Any]:
    """What the search itself took."""
    timed = {(each.batch, each.setup) for each in found.costs}
    return {"bench": "tune summary", "num_shapes": num_shapes, "num_timed": len(timed), "seconds": found.seconds}


def verdict(found: Tuned, batch: int) -> str:
    """What to use, what it gains, and how sure that is; INCONCLUSIVE where plain decoding itself did not hold still."""
    choice = found.choices[batch]
    if choice.noise <= DISTURBED:
        return _said(found, choice, batch)
    return (
        f"INCONCLUSIVE: the machine was disturbed, two runs of plain decoding differ by {choice.noise:.0%}; delete the"
        f" journal and tune again when it is calm. As measured: {_said(found, choice, batch)}"
    )


def _said(found: Tuned, choice: Choice, batch: int) -> str:
    best = choice.best
    if choice.setup == PLAIN_SETUP:
        if best == PLAIN_SETUP:
            return f"bs {batch}: plain decoding; nothing else was a candidate"
        return (
            f"bs {batch}: plain decoding; the best other setup, {words(best)}, runs at {choice.gains[best]:.2f}x of it,"
            f" which does not exceed the noise of {choice.noise:.1%}"
        )
    return (
        f"bs {batch}: {words(choice.setup)}: {choice.gains[choice.setup]:.2f}x plain decoding, accept length"
        f" {found.confirmed_accept_lengths[batch][choice.setup]:.2f}; real runs, noise {choice.noise:.1%}"
    )


def words(setup: Setup) -> str:
    """A setup by its flags."""
    shape = setup.shape
    if not shape.steps:
        return "plain decoding"
    tree = "" if shape.is_chain else f" --topk {shape.topk} --draft-tokens {shape.draft_tokens}"
    return f"--steps {shape.steps}{tree} --draft-tp {flag_of(setup.placement)}"


def flag_of(placement: str) -> str:
    """`tp 2` and `replicated` as `--draft-tp` takes them."""
    return placement if placement == REPLICATED else placement.removeprefix("tp ")


def as_toml(found: Tuned, *, model: str, draft: str | None) -> str:
    """The file that `--config` takes."""
    choices: Mapping[int, Choice] = found.choices
    shapes: dict[int, tuple[Speculation, str]] = {
        batch: (choice.setup.shape, flag_of(choice.setup.placement)) for batch, choice in choices.items()
    }
    notes = {batch: verdict(found, batch) for batch in choices}
    return tuned_toml(model=model, draft=draft, shapes=shapes, notes=notes)
