"""From numbers to a verdict: each outcome, on numbers made up for it."""

from dataclasses import replace

import numpy as np
import pytest

from slipstream.config.draft import MapReading
from slipstream.doctor.causes import cause_of
from slipstream.doctor.compare import difference
from slipstream.doctor.finding import Grade
from slipstream.doctor.hypotheses import CONTROL, Row, Search
from slipstream.doctor.score import Score
from slipstream.doctor.verdict import Outcome, judge
from slipstream.doctor.wiring import Aspect, Choices, Hypothesis, Wiring, alternatives
from slipstream.train.accept import Walk

BASE = Wiring(layers=(2, 15, 27), norm_output=False, norm_before_residual=False, map_reading=MapReading.OFFSETS)
PROMPTS = np.repeat(np.arange(12), 20)


def scored(loss: float, *, noise: float = 0.05, accepted: int = 60, seed: int = 0) -> Score:
    random = np.random.default_rng(seed)
    walk = Walk(cycles=100, emitted=160, accepted_K=(accepted, 20), proposed_K=(100, 60))
    return Score(losses_C=loss + noise * random.standard_normal(len(PROMPTS)), prompts_C=PROMPTS, walk=walk)


def row(name: str, score: Score, base: Score | None, aspect: Aspect | None = Aspect.LAYERS, **change) -> Row:
    hypothesis = Hypothesis(name=name, aspect=aspect, wiring=replace(BASE, **change))
    return Row(
        round=1, hypothesis=hypothesis, score=score, difference=None if base is None else difference(score, base)
    )


def searched(base: Score, *others: Row, control: float = 9.0, changes=(), ties=()) -> Search:
    first = row("as declared", base, None, None)
    best = changes[-1].score if changes else base
    return Search(
        rounds=((first, *others),),
        changes=tuple(changes),
        ties=tuple(ties),
        control=row(CONTROL, scored(control), best, None),
    )


def test_alternatives_that_are_surely_worse_leave_the_wiring_right():
    base = scored(3.0)
    found = judge(searched(base, row("layers +1", scored(3.3, seed=1), base, layers=(3, 16, 28))), num_layers=30)
    assert (found.outcome, found.grade) == (Outcome.RIGHT, Grade.HEALTHY)


def test_an_alternative_whose_interval_holds_zero_cannot_be_told_apart():
    base = scored(3.0, noise=1.0)
    other = row("layers +1", scored(3.05, noise=1.0, seed=1), base, layers=(3, 16, 28))
    found = judge(searched(base, other), num_layers=30)
    assert (found.outcome, found.grade, found.tied) == (Outcome.INCONCLUSIVE, Grade.WARNING, ("layers +1",))
    assert "cannot tell" in found.says


def test_an_alternative_that_makes_no_difference_is_no_doubt():
    base = scored(3.0, noise=0.0)
    other = row("the target's RoPE", scored(3.0, noise=0.0), base, Aspect.ROPE, own_rope=False)
    assert judge(searched(base, other), num_layers=30).outcome is Outcome.RIGHT


def test_what_is_surely_better_is_named_with_what_it_ties_with():
    base = scored(3.5)
    best = row("layers -1", scored(3.0, seed=1), base, layers=(1, 14, 26))
    tie = row("default layers", scored(3.0, seed=2), base, layers=(2, 14, 26))
    found = judge(searched(base, best, tie, changes=[best], ties=[tie]), num_layers=30)
    assert (found.outcome, found.grade) == (Outcome.WRONG, Grade.BROKEN)
    assert found.causes[0].name == "layers +1"
    assert found.tied == ("default layers",)
    assert "as likely" in found.says


@pytest.mark.parametrize(("accepted", "control"), [(5, 9.0), (60, 3.0)])
def test_a_draft_that_never_guesses_or_learns_nothing_from_the_states_is_a_stranger(accepted: int, control: float):
    found = judge(searched(scored(3.0, accepted=accepted), control=control), num_layers=30)
    assert found.outcome is Outcome.FOREIGN


def test_a_right_wiring_with_little_acceptance_is_weak():
    found = judge(searched(scored(3.0, accepted=20)), num_layers=30)
    assert (found.outcome, found.grade) == (Outcome.WEAK, Grade.WARNING)
    assert "20%" in found.says


def change(aspect: Aspect, base: Wiring = BASE, **values):
    return cause_of(Hypothesis(name="it", aspect=aspect, wiring=replace(base, **values)), base, num_layers=30)


def test_layers_are_written_for_each_engine_in_its_own_convention():
    cause = change(Aspect.LAYERS, layers=(4, 16, 28))
    assert cause.slipstream == "--draft-layers 4,16,28"
    assert "[3, 15, 27]" in cause.sglang
    assert "[4, 16, 28]" in cause.vllm
    assert change(Aspect.LAYERS, layers=(1, 14, 26)).name == "layers +1"


def test_every_aspect_has_words_for_all_three_engines():
    choices = Choices(num_layers=30, maps={}, has_embedding=True, has_rope=True)
    named = [cause_of(each, BASE, num_layers=30) for each in alternatives(BASE, choices)]
    assert len({each.name for each in named}) == len(named) == 8
    assert all(each.says and each.slipstream and each.sglang and each.vllm for each in named)
    assert change(Aspect.SHIFT, shifted=False).name == "trained on unshifted tokens"


def test_layers_outside_the_target_are_no_hypothesis():
    choices = Choices(num_layers=30, maps={}, has_embedding=False, has_rope=False)
    names = {each.name for each in alternatives(replace(BASE, layers=(0, 15, 30)), choices)}
    assert not names & {"layers +1", "layers -1"}
