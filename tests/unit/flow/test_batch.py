"""Batch sizes that cycles are captured for."""

import pytest

from slipstream.flow.batch import capture_sizes


@pytest.mark.parametrize(
    ("wanted", "max_batch", "found"),
    [
        (None, 1, (1,)),
        (None, 16, (1, 2, 4, 8, 16)),
        (None, 20, (1, 2, 4, 8, 16, 32)),
        ((1, 3, 6, 12), 5, (1, 3, 6)),
        ((1, 4), 16, (1, 4)),
        ((), 16, ()),
    ],
)
def test_sizes_go_up_to_the_first_that_holds_the_largest_batch(
    wanted: tuple[int, ...] | None, max_batch: int, found: tuple[int, ...]
) -> None:
    assert capture_sizes(wanted, max_batch) == found
