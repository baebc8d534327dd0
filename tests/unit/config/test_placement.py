"""`--draft-tp` and what it can mean beside a target."""

import pytest

from slipstream.config.placement import LEADER_ALONE, Placement, placement, placements

REPLICATED = Placement(ranks=1, replicated=True)


def test_every_divisor_is_a_placement_and_so_is_a_whole_draft_on_each() -> None:
    assert [str(each) for each in placements(1)] == ["tp 1"]
    assert [str(each) for each in placements(2)] == ["tp 1", "tp 2", "replicated"]
    assert [str(each) for each in placements(8)] == ["tp 1", "tp 2", "tp 4", "tp 8", "replicated"]
    assert [str(each) for each in placements(6)] == ["tp 1", "tp 2", "tp 3", "tp 6", "replicated"]


@pytest.mark.parametrize("tp", [1, 2, 3, 4, 6, 8])
def test_a_placement_is_read_from_what_names_it(tp: int) -> None:
    for each in placements(tp):
        assert placement(str(each).removeprefix("tp "), tp) == each


def test_replicated_on_one_rank_is_that_rank_alone() -> None:
    assert placement("replicated", 1) == LEADER_ALONE


@pytest.mark.parametrize("text", ["3", "0", "8", "-1", "1.0", "", "all", "auto", "Replicated", "\u00b2"])
def test_whatever_is_impossible_is_refused_with_what_is_possible(text: str) -> None:
    with pytest.raises(ValueError, match=r"not possible beside a target cut over 4; use auto, replicated or 1, 2, 4$"):
        placement(text, 4)


def test_ranks_hold_the_draft_as_placed() -> None:
    assert [Placement(ranks=2).holds(rank) for rank in range(4)] == [True, True, False, False]
    assert [REPLICATED.holds(rank) for rank in range(4)] == [True] * 4
    assert [each.holders(4) for each in placements(4)] == [1, 2, 4, 4]
