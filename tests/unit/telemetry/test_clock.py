"""Clocks only grow; a stopwatch measures the block, also when the block fails."""

import pytest

from slipstream.telemetry.clock import Clock, ManualClock, Stopwatch


def test_the_clock_never_runs_back():
    clock = Clock()
    assert clock.now() <= clock.now()


def test_a_stopwatch_reads_while_it_runs_and_stands_still_after():
    clock = ManualClock(start=10)
    watch = Stopwatch(clock)
    assert watch.seconds == 0
    with watch:
        clock.advance(2)
        assert watch.seconds == 2
        clock.advance(1)
    clock.advance(5)
    assert watch.seconds == 3


def test_a_stopwatch_starts_over_when_it_is_used_again():
    clock = ManualClock()
    watch = Stopwatch(clock)
    for seconds in (4, 1):
        with watch:
            clock.advance(seconds)
        assert watch.seconds == seconds


def test_a_failing_block_is_timed_and_still_fails():
    clock = ManualClock()
    watch = Stopwatch(clock)

    def fail() -> None:
        with watch:
            clock.advance(1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert watch.seconds == 1


def test_a_manual_clock_refuses_to_run_back():
    with pytest.raises(ValueError, match="cannot run back"):
        ManualClock().advance(-1)
