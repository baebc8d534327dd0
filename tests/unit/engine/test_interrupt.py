"""Ctrl-C waits for the end of an order, but not for ever."""

import signal
import threading
import time
from collections.abc import Callable

import pytest

from slipstream.engine import interrupt
from slipstream.engine.interrupt import interrupts_wait


@pytest.fixture(autouse=True)
def python_hears_ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def press_not() -> None:
    pass


def nap() -> None:
    time.sleep(0.01)


def steps_of(*steps: Callable[[], None]) -> list[str]:
    """The steps of an order that were done before Ctrl-C was heard."""
    done: list[str] = []

    def order() -> None:
        with interrupts_wait():
            for step in steps:
                step()
                done.append(step.__name__)

    with pytest.raises(KeyboardInterrupt):
        order()
    return done


def test_ctrl_c_is_heard_when_the_order_has_ended():
    assert steps_of(press, press_not) == ["press", "press_not"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_one_is_heard_at_once():
    assert steps_of(press, press, press_not) == ["press"]


def test_an_order_that_does_not_end_is_left(monkeypatch):
    monkeypatch.setattr(interrupt, "PATIENCE_S", 0.05)
    began = time.monotonic()
    assert len(steps_of(press, *[nap] * 3000)) < 2000
    assert time.monotonic() < began + 20


def test_without_ctrl_c_nothing_happens_on_any_thread():
    def run():
        with interrupts_wait():
            pass

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    run()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_ignores_ctrl_c_goes_on_ignoring_it():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_wait():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
