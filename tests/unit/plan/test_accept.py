"""Accept length over K."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.plan.accept import by_position_length, chain_length, check_positions, constant_p


@pytest.mark.parametrize(("length", "p"), [(2.1, 0.535), (2.25, 0.571), (2.4, 0.603)])
def test_the_founding_case_s_conditional_acceptance(length, p):
    assert constant_p(length, 5) == pytest.approx(p, abs=0.001)


@given(st.floats(0.01, 0.99), st.integers(1, 20))
def test_an_accept_length_leads_back_to_its_acceptance(p, steps):
    assert constant_p(chain_length(p, steps), steps) == pytest.approx(p, abs=1e-5)


def test_no_steps_emit_the_target_s_own_token():
    assert chain_length(0.9, 0) == by_position_length((0.9,), 0) == 1.0


def test_positions_add_up_and_their_last_ratio_goes_on():
    reached = (0.645, 0.393, 0.240)
    assert by_position_length(reached, 3) == pytest.approx(2.278)
    assert by_position_length(reached, 4) == pytest.approx(2.278 + 0.240 * 0.240 / 0.393)


@pytest.mark.parametrize(
    ("length", "steps", "words"), [(7.0, 5, "between 1 and 6"), (0.5, 5, "between"), (2.0, 0, "one")]
)
def test_an_accept_length_that_no_chain_has_is_refused(length, steps, words):
    with pytest.raises(ValueError, match=words):
        constant_p(length, steps)


@pytest.mark.parametrize("reached", [(0.5, 0.6), (1.2,), (-0.1,)])
def test_positions_that_rise_or_are_no_probabilities_are_refused(reached):
    with pytest.raises(ValueError, match="acceptance by position"):
        check_positions(reached)
