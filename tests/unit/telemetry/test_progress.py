"""Bars are for terminals; their amounts are for people."""

import sys

import pytest

from slipstream.telemetry.progress import BYTES, amount, progress


def work() -> None:
    with progress("Loading", 3, unit="tensors") as meter:
        for _ in range(3):
            meter.advance()
            meter.note("half [way]")


def test_a_pipe_sees_nothing(capsys):
    work()
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_terminal_sees_the_bar_on_stderr(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    work()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Loading" in captured.err
    assert "3/3 tensors" in captured.err
    assert "half [way]" in captured.err


def test_quiet_silences_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("Loading", None, quiet=True) as meter:
        meter.advance(5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("done", "total", "unit", "text"),
    [
        (0, 98_000_000, BYTES, "0/98 MB"),
        (1_500_000_000, 16_000_000_000, BYTES, "1.5/16.0 GB"),
        (12, 40, BYTES, "12/40 B"),
        (2_000, None, BYTES, "2 kB"),
        (12, 40, "steps", "12/40 steps"),
        (7, None, "", "7"),
    ],
)
def test_amounts_take_the_unit_that_suits_the_whole(done, total, unit, text):
    assert amount(done, total, unit=unit) == text
