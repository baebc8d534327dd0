"""Outcomes land by turns in two places of the host's memory."""

import pytest
import torch

from slipstream.runner.landing import Landing


@pytest.mark.parametrize("direct", [True, False], ids=["kernels write", "copied"])
def test_an_outcome_stays_while_the_next_one_lands(direct: bool) -> None:
    left = torch.zeros(2, 3, dtype=torch.int64)
    landing = Landing(left, direct=direct)

    def cycle(number: int, turn: int) -> None:
        (landing.places_2SC[turn] if direct else left).fill_(number)

    cycle(1, landing.next_turn)
    first, _ = landing.send()
    cycle(2, landing.next_turn)
    second, _ = landing.send()
    assert (first == 1).all()
    assert (second == 2).all()
    cycle(3, 1 - landing.next_turn)
    again, _ = landing.send_again()
    assert (again == 3).all(), "a cycle that is run once more lands where it did"
    assert (first == 1).all()
