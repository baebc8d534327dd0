"""Counts follow their definitions."""

from slipstream.flow.output import Statistics


def test_every_number_of_a_small_case() -> None:
    """Chain of 3: four cycles keep 4, 1, 2 and (trimmed by an end) 2 tokens."""
    counts = Statistics()
    counts.record(kept=4, depth=3, proposed=3, trimmed=False)
    counts.record(kept=1, depth=3, proposed=3, trimmed=False)
    counts.record(kept=2, depth=3, proposed=3, trimmed=False)
    counts.record(kept=2, depth=3, proposed=3, trimmed=True)
    assert (counts.cycles, counts.emitted, counts.accepted, counts.proposed) == (4, 9, 5, 12)
    assert counts.accept_length == 9 / 4
    assert counts.accept_rate == 5 / 12
    assert counts.histogram == [1, 2, 0, 1]
    assert counts.reached == [4, 2, 1]  # the trimmed cycle says nothing about position 2
    assert counts.acceptance_by_position == [3 / 4, 1 / 2, 1.0]


def test_plain_decoding_has_an_accept_length_of_one() -> None:
    counts = Statistics()
    for _ in range(5):
        counts.record(kept=1, depth=0, proposed=0, trimmed=False)
    assert counts.accept_length == 1.0
    assert counts.acceptance_by_position == []


def test_sums_over_requests_are_sums_of_counts() -> None:
    one, other, both = Statistics(), Statistics(), Statistics()
    for counts in (one, both):
        counts.record(kept=3, depth=4, proposed=4, trimmed=False)
    for counts in (other, both):
        counts.record(kept=5, depth=4, proposed=4, trimmed=False)
    one.add(other)
    assert one == both
