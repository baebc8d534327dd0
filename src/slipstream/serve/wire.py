"""The engine's end of the socket: it never waits for the other side while there is work.

What cannot be sent at once is kept and goes out between later steps.
"""

import select
import socket
from typing import Any

import msgspec

LENGTH_BYTES = 4
READ_BYTES = 1 << 18


class Frames:
    """Takes bytes as they come and gives whole messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def push(self, data: bytes) -> list[bytes]:
        """Take bytes; the messages that are whole now."""
        self._data += data
        found: list[bytes] = []
        start = 0
        while len(self._data) - start >= LENGTH_BYTES:
            stop = start + LENGTH_BYTES + int.from_bytes(self._data[start : start + LENGTH_BYTES], "big")
            if stop > len(self._data):
                break
            found.append(bytes(self._data[start + LENGTH_BYTES : stop]))
            start = stop
        del self._data[:start]
        return found


def frame(payload: bytes) -> bytes:
    """A message as it travels."""
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


class EngineWire:
    """Messages in and out of the engine's process."""

    def __init__(self, sock: socket.socket, kind: Any) -> None:
        """kind: the union of messages that may come in."""
        sock.settimeout(0)  # never wait
        self._sock, self._frames = sock, Frames()
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(kind)
        self._unsent = bytearray()
        self.closed = False

    def send(self, message: Any) -> None:
        """Send, as far as the socket takes it now."""
        self._unsent += frame(self._encoder.encode(message))
        self._flush()

    def receive(self, *, wait_s: float | None) -> list[Any]:
        """Messages that came; wait_s: how long to wait for the first, None = as long as it takes.

        `closed` is set when the other side has gone.
        """
        readable, writable, _ = select.select([self._sock], [self._sock] if self._unsent else [], [], wait_s)
        if writable:
            self._flush()
        return self._read() if readable else []

    def drain(self, seconds: float) -> None:
        """Send what is left, for so long at most."""
        while self._unsent and not self.closed:
            if not select.select([], [self._sock], [], seconds)[1]:
                return
            self._flush()

    def _read(self) -> list[Any]:
        payloads: list[bytes] = []
        while True:
            try:
                data = self._sock.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            payloads += self._frames.push(data)
            if len(data) < READ_BYTES:
                break
        return [self._decoder.decode(payload) for payload in payloads]

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self.closed = True
            self._unsent.clear()
