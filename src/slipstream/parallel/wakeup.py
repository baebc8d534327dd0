"""A bell that wakes a waiting thread, rung by other threads and by signals, also while the main thread is stuck."""

import os
import select
import signal
import socket
import threading
from contextlib import suppress

_RING = b"\0"
_NO_DESCRIPTOR = -1


class Wakeup:
    """A pair of sockets: `wait` listens on one, the interpreter's C signal handler and `ring` write to the other."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)
        self._catches = False
        self._before = _NO_DESCRIPTOR

    def catch_signals(self) -> None:
        """Let signals ring; only those for which Python has a handler do. Nothing happens outside the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            self._catches = True

    def ring(self) -> None:
        """Wake the waiting thread now."""
        with suppress(OSError):
            self._writer.send(_RING)

    def wait(self, seconds: float) -> frozenset[int]:
        """Wait until the bell rings or the time has passed; return the signals that came."""
        poll = select.poll()  # select() refuses descriptors over 1023
        poll.register(self._reader, select.POLLIN)
        if not poll.poll(max(0.0, seconds) * 1000):
            return frozenset()
        with suppress(OSError):
            signals = self._reader.recv(4096).replace(_RING, b"")
            self._pass_on(signals)
            return frozenset(signals)
        return frozenset()

    def release_signals(self) -> None:
        """Give the signals back to whoever had them, unless somebody has taken them since.

        Only the main thread can. Elsewhere they go on ringing a bell that nobody hears, and `close` leaves it open.
        """
        if self._catches and threading.current_thread() is threading.main_thread():
            current = signal.set_wakeup_fd(self._before)
            if current != self._writer.fileno():
                signal.set_wakeup_fd(current)
            self._catches = False

    def close(self) -> None:
        """Close both ends, if release_signals has been called: the signal handler must not write to a closed one."""
        if not self._catches:
            self._reader.close()
            self._writer.close()

    def _pass_on(self, signals: bytes) -> None:
        if signals and self._before != _NO_DESCRIPTOR:
            with suppress(OSError):
                os.write(self._before, signals)
