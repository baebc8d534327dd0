"""The reading of V(n): curves of a known cause."""

import pytest

from slipstream.bench.verify_curve import CURVE_TOKENS, line, read_curve


def experts(tokens: int) -> float:
    """Distinct ones of 384, eight a token, independent."""
    return 384 * (1 - (1 - 8 / 384) ** tokens)


def slow_path(tokens: int) -> float:
    """Experts streamed at a quarter of the memory's rate."""
    return 8.2 + 0.434 * experts(tokens)


def fixed_overhead(tokens: int) -> float:
    """The same machine with good expert kernels and a price of verifying at all."""
    return 9.36 + 0.228 * experts(tokens) + (6.0 if tokens > 1 else 0.0)


def test_an_even_price_of_each_token_is_a_slow_path() -> None:
    reading = read_curve({tokens: slow_path(tokens) for tokens in CURVE_TOKENS})
    assert reading.word == "slow path"
    assert reading.slope_ms == pytest.approx(3.06, abs=0.1)


def test_a_jump_at_two_tokens_is_a_fixed_overhead() -> None:
    reading = read_curve({tokens: 10.0 + 0.1 * tokens + (5.0 if tokens > 1 else 0.0) for tokens in CURVE_TOKENS})
    assert reading.word == "fixed overhead"
    assert reading.jump_ms == pytest.approx(5.0)
    assert reading.slope_ms == pytest.approx(0.1)


def test_a_jump_before_a_slope_is_both() -> None:
    assert read_curve({tokens: fixed_overhead(tokens) for tokens in CURVE_TOKENS}).word == "both"


@pytest.mark.parametrize("slope_ms", [0.0, 0.02, -0.02])
def test_a_dense_model_that_reads_its_weights_is_flat(slope_ms: float) -> None:
    reading = read_curve({tokens: 4.0 + slope_ms * tokens for tokens in CURVE_TOKENS})
    assert reading.word == "flat"
    assert "flat" in reading.sentence


def test_one_noisy_point_is_no_jump() -> None:
    curve = dict.fromkeys(CURVE_TOKENS, 4.0) | {2: 4.5}
    assert read_curve(curve).word == "flat"


def test_points_far_from_any_line_say_nothing() -> None:
    reading = read_curve(dict.fromkeys(CURVE_TOKENS, 4.0) | {3: 9.0})
    assert reading.word == "unclear"
    assert "INCONCLUSIVE" in reading.sentence


def test_a_line_goes_through_its_points() -> None:
    assert line([(1, 5.0), (2, 7.0), (5, 13.0)]) == pytest.approx((2.0, 3.0))
    assert line([(1, 5.0)]) == (0.0, 5.0)
