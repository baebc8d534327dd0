"""The run is trimmed once, by whatever ends first."""

from slipstream.flow.output import FinishReason
from slipstream.verify.finish import trim
from tests.tiny_engine import StopAfter

NEVER = 10**9


def test_eight_emitted_cap_ten_and_a_run_that_starts_with_eos_ends_at_nine_with_reason_stop() -> None:
    trimmed = trim([2, 5, 6], room=2, stop_ids={2}, matcher=StopAfter(NEVER))
    assert trimmed.tokens == (2,)
    assert trimmed.reason is FinishReason.STOP


def test_a_stop_beats_the_length_cap_that_falls_on_the_same_token() -> None:
    assert trim([5, 2], room=2, stop_ids={2}, matcher=StopAfter(NEVER)).reason is FinishReason.STOP
    assert trim([5, 6], room=2, stop_ids={2}, matcher=StopAfter(2)).reason is FinishReason.STOP


def test_a_length_cap_cuts_a_run_before_a_later_stop() -> None:
    trimmed = trim([5, 6, 2], room=2, stop_ids={2}, matcher=StopAfter(NEVER))
    assert trimmed.tokens == (5, 6)
    assert trimmed.reason is FinishReason.LENGTH


def test_a_stop_string_inside_a_run_ends_it_there() -> None:
    trimmed = trim([5, 6, 7, 8], room=9, stop_ids=(), matcher=StopAfter(2))
    assert trimmed.tokens == (5, 6)
    assert trimmed.reason is FinishReason.STOP


def test_a_run_without_an_end_goes_on() -> None:
    trimmed = trim([5, 6], room=3, stop_ids={2}, matcher=StopAfter(NEVER))
    assert trimmed.tokens == (5, 6)
    assert trimmed.reason is None


def test_ignored_eos_is_a_token_like_any_other() -> None:
    assert trim([2, 2], room=5, stop_ids=(), matcher=StopAfter(NEVER)).reason is None


class Letters:
    """A grammar of so many tokens, the last of which may break it."""

    def __init__(self, count: int, *, breaks: bool = False) -> None:
        self.left, self.breaks = count, breaks

    @property
    def ended(self) -> bool:
        return self.left <= 0

    @property
    def broken(self) -> bool:
        return self.ended and self.breaks

    def push(self, token: int) -> bool:
        self.left -= 1
        return True


def test_a_grammar_that_ends_inside_a_run_ends_the_answer_there_even_at_the_cap() -> None:
    for room in (2, 9):
        trimmed = trim([5, 6, 7, 8][: room + 1], room=room, stop_ids=(), matcher=StopAfter(NEVER), grammar=Letters(2))
        assert trimmed.tokens == (5, 6)
        assert trimmed.reason is FinishReason.STOP


def test_a_grammar_that_breaks_gives_the_answer_up() -> None:
    trimmed = trim([5, 6, 7], room=9, stop_ids=(), matcher=StopAfter(NEVER), grammar=Letters(2, breaks=True))
    assert trimmed.tokens == (5, 6)
    assert trimmed.reason is FinishReason.ABORT
