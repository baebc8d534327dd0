"""Ctrl-C at the end of an order: one that a part of the ranks has carried out cannot be taken back."""

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE_S = 2.0  # for the order to end; the watchdog ends a main thread that does not move a second later


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Hear Ctrl-C when the block has ended; at once if that takes too long, or at the second one."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    timers: list[threading.Timer] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if timers:
            before(number, frame)
            return
        timers.append(threading.Timer(PATIENCE_S, _thread.interrupt_main))
        timers[0].daemon = True
        timers[0].start()

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        signal.signal(signal.SIGINT, before)
    if timers:
        before(signal.SIGINT, None)
