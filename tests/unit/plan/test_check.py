"""Fitting and judging: made-up measurements give their parameters back, bounds are computed as they are named."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream.plan.check import Forecast, blind_fit, score, stack_sd, with_plain
from slipstream.plan.cost import NAMES, Free
from slipstream.plan.fit import Observation, What, curve_ms, fit, observations, predicted
from slipstream.plan.points import Point, read_curves, read_points
from slipstream.plan.prior import usual
from slipstream.plan.spread import draws, published

DATA = Path(__file__).resolve().parents[3] / "benchmarks" / "data"
POINTS, _ = read_points(DATA / "published_points.csv")
CURVES = read_curves(DATA / "cost_curves.csv")


def forecast(speedup: float, predicted_speedup: float, **more) -> Forecast:
    stated = next(each for each in POINTS if each.accept_length and each.baseline)
    point = replace(stated, accept_length=2.0, speedup=speedup)
    made = {
        "accept_length": 2.0,
        "ratio": 2.0 / predicted_speedup,
        "plain_ms": 5.0,
        "variance": 0.0,
        "blind_ratio": 2.0,
    }
    return Forecast(point=point, **(made | more))


def test_measurements_made_of_known_parameters_are_predicted_again():
    """Fixed costs of layers and steps can stand for each other, so it is predictions that must come back."""
    truth = Free(eta_e=0.3, layer_us=30.0, draft_us=400.0)
    made = [replace(each, log=predicted(each, truth)) for each in observations(POINTS, CURVES)]
    found = fit(made).free
    far = [abs(predicted(each, found) - each.log) for each in made]
    before = [abs(predicted(each, Free()) - each.log) for each in made]
    assert np.median(far) < 0.02 < 0.06 < np.median(before)
    assert found.eta_e == pytest.approx(0.3, rel=0.2)


def test_without_measurements_the_prior_stands():
    found = fit([]).free
    assert all(getattr(found, name) == pytest.approx(getattr(Free(), name)) for name in NAMES)


def test_one_wild_measurement_moves_little():
    seen = [each for each in observations(POINTS, CURVES) if each.source == "rtx6kpro"]
    calm = fit(seen).free
    wild = replace(seen[0], log=seen[0].log + 2.0)
    moved = fit([wild, *seen[1:]]).free
    assert all(abs(math.log(getattr(moved, name) / getattr(calm, name))) < 0.2 for name in NAMES)


def test_what_is_learnt_from_names_no_source_twice_for_one_plain_step():
    plain = [each for each in observations(POINTS, []) if each.what is What.PLAIN]
    keys = [(each.source, each.group, each.log) for each in plain]
    assert len(keys) > 10
    assert all(isinstance(each, Observation) and isinstance(each.of, Point) for each in plain)


def test_the_shipped_fit_is_the_fit_to_the_shipped_data():
    training = [*CURVES, *read_curves(DATA / "anchors.csv")]
    found, shipped = fit(observations(POINTS, training)), published()
    for name in NAMES:
        assert getattr(shipped.fitted.free, name) == pytest.approx(getattr(found.free, name), rel=1e-3)
    assert shipped.usual["eagle-3"] == pytest.approx(usual(POINTS).by_kind["eagle-3"], abs=1e-3)
    assert np.all(np.linalg.eigvalsh(shipped.fitted.covariance) > -1e-6)


def test_draws_are_the_same_every_time():
    first, second = draws(published().fitted, num=3), draws(published().fitted, num=3)
    assert first.frees == second.frees


def test_balanced_accuracy_is_the_mean_over_gains_and_losses():
    found = [forecast(1.5, 1.2), forecast(1.5, 1.2), forecast(1.5, 0.9), forecast(0.8, 0.7)]
    judged = score(found)
    assert judged.balanced_accuracy == pytest.approx((2 / 3 + 1) / 2)
    assert judged.num_losses == 1
    assert judged.blind_error == pytest.approx(np.median([abs(1.0 / each.point.speedup - 1) for each in found]))


def test_gains_alone_have_no_balanced_accuracy():
    assert math.isnan(score([forecast(1.5, 1.2)]).balanced_accuracy)


def of_sources(forecasts: list[Forecast]) -> list[Forecast]:
    return [replace(each, point=replace(each.point, source=str(i))) for i, each in enumerate(forecasts)]


def test_intervals_are_as_wide_as_residuals_of_other_sources_ask():
    assert stack_sd(of_sources([forecast(1.5, 1.5)] * 5)) == 0
    assert stack_sd(of_sources([forecast(1.5, 1.5 * math.exp(0.3))] * 5)) == pytest.approx(0.3 / 1.2816)


def test_too_few_sources_teach_no_spread():
    assert stack_sd([]) == stack_sd([forecast(1.5, 1.5)] * 9) == 0.35


def test_a_known_plain_speed_replaces_the_predicted_one():
    each = forecast(1.5, 1.25)
    base = replace(each.point, batch=1, baseline=100.0)
    known = with_plain([replace(each, point=base, plain_ms=5.0)])[0]
    assert known.ratio == pytest.approx(1 + (each.ratio - 1) * 5.0 / 10.0)


def test_the_blind_fit_finds_a_line_that_is_there():
    some = [each for each in POINTS if each.accept_length]
    made = [replace(each, speedup=(each.accept_length or 1) / (1.2 + 0.1 * each.steps)) for each in some]
    assert blind_fit(made) == pytest.approx((1.2, 0.1))


def test_curves_of_models_that_nobody_knows_are_left_out():
    unknown = replace(CURVES[0], shape=None)
    assert observations([], [unknown]) == []
    with pytest.raises(AssertionError, match="left out"):
        curve_ms(unknown, Free())
