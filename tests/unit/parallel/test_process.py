"""A process is known by its pid and by when it started."""

import os
import subprocess
import sys

from slipstream.parallel.process import is_gone, kill, start_ticks


def sleeper():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_this_process_is_alive():
    assert not is_gone(os.getpid(), start_ticks(os.getpid()))


def test_a_process_nobody_has_waited_for_is_gone_when_it_has_ended():
    child = sleeper()
    started = start_ticks(child.pid)
    assert not is_gone(child.pid, started)
    kill(child.pid, started)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here
    assert is_gone(child.pid, started)
    assert start_ticks(child.pid) is None
    assert child.wait() == -9


def test_a_later_process_with_the_same_pid_is_not_killed():
    child = sleeper()
    try:
        started = start_ticks(child.pid)
        assert is_gone(child.pid, started - 1)
        kill(child.pid, started - 1)
        assert child.poll() is None
        assert not is_gone(child.pid, started)
    finally:
        child.kill()
        child.wait()


def test_without_start_times_the_pid_alone_decides():
    child = sleeper()
    assert not is_gone(child.pid, None)
    child.kill()
    child.wait()
    assert is_gone(child.pid, None)
