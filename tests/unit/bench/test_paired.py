"""Two drafts on the same prompts."""

import random

import pytest

from slipstream.bench.paired import as_row, compare, interval, verdict


def lengths(mean: float, count: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [mean + draw.gauss(0, 0.3) for _ in range(count)]


def test_a_clear_difference_is_said_with_its_interval() -> None:
    hard = lengths(2.0, 40, seed=1)
    found = compare(hard, [each + 0.4 + noise for each, noise in zip(hard, lengths(0, 40, seed=2), strict=True)])
    assert found.conclusive
    assert 0 < found.difference_low < found.difference < found.difference_high
    assert verdict(found, "a", "b").startswith(f"b emits {found.difference:.3f} more tokens a cycle than a, 95% [+0.")
    back = compare([2.5] * 10, [2.0] * 10)
    assert verdict(back, "a", "b").startswith("b emits 0.500 fewer tokens a cycle than a")


def test_an_interval_that_straddles_zero_is_inconclusive() -> None:
    found = compare(lengths(2.0, 20, seed=1), lengths(2.0, 20, seed=2))
    assert found.difference_low < 0 < found.difference_high
    assert verdict(found, "a", "b").startswith("INCONCLUSIVE: b differs from a by ")


def test_few_prompts_are_inconclusive_however_far_apart() -> None:
    assert verdict(compare([1.0] * 9, [3.0] * 9), "a", "b").startswith("INCONCLUSIVE: 9 prompts are too few")


def test_pairing_sees_what_the_spread_between_prompts_hides() -> None:
    easy_and_hard = [1.0, 5.0] * 10
    found = compare(easy_and_hard, [each + 0.1 + 0.01 * (place % 3) for place, each in enumerate(easy_and_hard)])
    assert found.conclusive
    assert (found.num_better, found.num_worse) == (20, 0)


def test_prompts_without_cycles_are_left_out_and_none_left_is_refused() -> None:
    assert compare([2.0, None, 2.0], [2.5, 3.0, None]).num_pairs == 1
    with pytest.raises(ValueError, match="no prompt was answered by both"):
        compare([None], [2.0])


def test_the_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(200):
        low, high = interval(lengths(0.0, 30, seed=seed), resamples=400, seed=seed)
        hits += low <= 0 <= high
    assert 0.88 < hits / 200 <= 0.99


def test_a_row_names_the_drafts() -> None:
    row = as_row(compare([2.0] * 6, [2.5] * 6), "a", "b")
    assert (row["draft_a"], row["draft_b"], row["num_pairs"], row["difference"]) == ("a", "b", 6, 0.5)
