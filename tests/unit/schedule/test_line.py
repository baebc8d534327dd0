"""The waiting line against a list that is sorted every time."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.schedule.line import MAX_GONE, Line, Ticket

MOVES = st.lists(st.tuples(st.sampled_from(["join", "leave", "first"]), st.integers(0, 15), st.integers(-2, 2)))


@given(MOVES)
def test_the_first_in_line_is_the_most_important_and_then_the_earliest(moves: list[tuple[str, int, int]]) -> None:
    line, waiting = Line(), dict[int, Ticket]()
    for arrival, (move, request, priority) in enumerate(moves):
        if move == "join" and request not in waiting:
            waiting[request] = (priority, arrival, request)
            line.join(waiting[request])
        if move == "leave":
            assert line.leave(request) == (waiting.pop(request, None) is not None)
        assert line.first() == min(waiting.values(), default=None)
        assert len(line) == len(waiting)
        assert all((each in line) == (each in waiting) for each in range(16))


def test_a_request_that_comes_back_has_its_old_place() -> None:
    line = Line()
    for ticket in ((0, 0, 10), (0, 1, 11), (0, 2, 12)):
        line.join(ticket)
    assert line.leave(10)
    assert line.first() == (0, 1, 11)
    line.join((0, 0, 10))
    assert line.first() == (0, 0, 10)


def test_an_id_that_is_used_again_does_not_take_the_place_of_the_one_that_left() -> None:
    line = Line()
    line.join((0, 0, 7))
    line.join((0, 1, 8))
    line.leave(7)
    line.join((1, 2, 7))
    assert line.first() == (0, 1, 8)


def test_tickets_of_those_that_left_do_not_pile_up_behind_one_that_stays() -> None:
    line = Line()
    line.join((0, 0, 0))
    for request in range(1, 10_000):
        line.join((5, request, request))
        assert line.leave(request)
    assert len(line._heap) <= MAX_GONE + 2
    assert line.first() == (0, 0, 0)
    assert len(line) == 1


def test_an_empty_line_has_no_first() -> None:
    line = Line()
    assert line.first() is None
    assert not line.leave(3)
