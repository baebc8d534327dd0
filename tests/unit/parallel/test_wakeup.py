"""The bell is heard, signals ring it, and whoever had the signals before still hears them."""

import os
import signal
import socket
import threading

import pytest

from slipstream.parallel.wakeup import Wakeup


@pytest.fixture
def bell():
    wakeup = Wakeup()
    yield wakeup
    wakeup.release_signals()
    wakeup.close()


@pytest.fixture
def usr1():
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_nothing_is_heard_when_nothing_rings(bell):
    assert bell.wait(0.01) == frozenset()


def test_a_ring_ends_the_wait(bell):
    threading.Timer(0.02, bell.ring).start()
    assert bell.wait(30) == frozenset()


def test_a_signal_ends_the_wait_and_is_named(bell, usr1):
    bell.catch_signals()
    os.kill(os.getpid(), usr1)
    assert bell.wait(30) == {usr1}


def test_who_had_the_signals_before_hears_them_and_gets_them_back(bell, usr1):
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno())
    try:
        bell.catch_signals()
        os.kill(os.getpid(), usr1)
        bell.wait(30)
        assert reader.recv(1) == bytes([usr1])
        bell.release_signals()
        assert signal.set_wakeup_fd(before) == writer.fileno()
    finally:
        signal.set_wakeup_fd(before)
        reader.close()
        writer.close()


def test_who_took_the_signals_later_keeps_them(bell):
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    bell.catch_signals()
    signal.set_wakeup_fd(writer.fileno())
    bell.release_signals()
    assert signal.set_wakeup_fd(-1) == writer.fileno()
    reader.close()
    writer.close()


def test_another_thread_cannot_give_the_signals_back_and_leaves_the_bell_open(bell):
    bell.catch_signals()
    others = threading.Thread(target=lambda: (bell.release_signals(), bell.close()))
    others.start()
    others.join()
    bell.ring()
    assert bell.wait(30) == frozenset()
    bell.release_signals()
    assert signal.set_wakeup_fd(-1) == -1


def test_other_threads_do_not_touch_the_signals(bell):
    thread = threading.Thread(target=bell.catch_signals)
    thread.start()
    thread.join()
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    assert before == -1
