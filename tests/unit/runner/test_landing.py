"""Outcomes land by turns in two places of the host's memory."""

import math
import time

import pytest
import torch

from slipstream.runner.flight import Flight
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


class Landed:
    """A cycle on a device that ends at some query, or fails, or never ends."""

    def __init__(self, ends_at: float, error: Exception | None = None) -> None:
        self.queries, self.ends_at, self.error = 0, ends_at, error

    def query(self) -> bool:
        self.queries += 1
        if self.error is not None:
            raise self.error
        return self.queries >= self.ends_at


@pytest.mark.parametrize(
    ("landed", "queries"), [(Landed(3), 3), (Landed(1, RuntimeError("the device failed")), 1)], ids=["ends", "failed"]
)
def test_a_cycle_that_ends_or_fails_is_not_waited_for_any_longer(landed: Landed, queries: int) -> None:
    flight(landed).wait(60)
    assert landed.queries == queries


def test_a_cycle_that_waits_for_a_dead_rank_is_not_waited_for_for_ever() -> None:
    began = time.monotonic()
    flight(Landed(math.inf)).wait(0.05)
    assert 0.05 <= time.monotonic() - began < 10


def flight(landed: Landed) -> Flight:
    return Flight(None, None, (), {}, torch.zeros(1), landed)
