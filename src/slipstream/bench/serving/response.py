"""An HTTP/1.1 response as it comes in, each piece of its body with the time at which it came.

The pieces are only kept here: reading what is in them waits until the response has ended, so that as little as possible
runs between two of them.
"""

from dataclasses import dataclass, field
from enum import Enum

LINE, HEAD = b"\r\n", b"\r\n\r\n"
MOST_HEAD_BYTES = 1 << 16


class BadResponse(Exception):
    """What came is not HTTP/1.1; the words say what is wrong."""


@dataclass(slots=True, kw_only=True)
class Response:
    """What an HTTP server answered."""

    status: int = 0
    reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)  # names in small letters
    pieces: list[tuple[float, bytes]] = field(default_factory=list)  # when each came, and the body in it
    began_s: float = 0.0  # when it was asked for
    ended_s: float = 0.0

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(piece for _, piece in self.pieces)


class _Part(Enum):
    HEAD = 0
    SIZE = 1  # of a chunk
    CHUNK = 2
    CHUNK_END = 3
    TRAILER = 4
    SIZED = 5  # a body whose length was said
    UNTIL_CLOSE = 6
    DONE = 7


class ResponseReader:
    """Takes bytes in whatever portions they come; one reader a response."""

    def __init__(self) -> None:
        self.response = Response()
        self._part, self._left, self._rest = _Part.HEAD, 0, b""

    @property
    def done(self) -> bool:
        """Whether the response is whole."""
        return self._part is _Part.DONE

    @property
    def begun(self) -> bool:
        """Whether anything has come."""
        return self._part is not _Part.HEAD or bool(self._rest)

    @property
    def may_be_kept(self) -> bool:
        """Whether the connection may carry another request."""
        return self.done and not self._rest and self.response.headers.get("connection", "").lower() != "close"

    def feed(self, data: bytes, now_s: float) -> bool:
        """Take the next bytes; whether the response is whole.

        Raises:
            BadResponse: this is no HTTP/1.1.
        """
        self._rest += data
        while self._step(now_s):
            pass
        return self.done

    def close(self) -> bool:
        """The other side will send no more; whether the response is whole."""
        if self._part is _Part.UNTIL_CLOSE:
            self._part = _Part.DONE
            self.response.headers["connection"] = "close"
        return self.done

    def _step(self, now_s: float) -> bool:
        """Use up some of what is there; False where more is needed."""
        if self._part is _Part.DONE:
            return False
        if self._part is _Part.HEAD:
            return self._head()
        if self._part in (_Part.SIZE, _Part.CHUNK_END, _Part.TRAILER):
            return self._line()
        return self._body(now_s)

    def _head(self) -> bool:
        head, found, rest = self._rest.partition(HEAD)
        if not found:
            if len(self._rest) > MOST_HEAD_BYTES or not b"HTTP/1.".startswith(self._rest[:7]):
                raise BadResponse(f"it begins with {self._rest[:40]!r}, which is no HTTP/1.1")
            return False
        self._rest = rest
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        code, _, reason = status.partition(" ")
        if not version.startswith("HTTP/1.") or not code.isdigit():
            raise BadResponse(f"it begins with {first[:40]!r}, which is no HTTP/1.1")
        if 100 <= int(code) < 200:
            return True  # an interim response: the real one follows
        pairs = (line.partition(":") for line in lines)
        self.response.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.response.status, self.response.reason = int(code), reason
        self._part = self._framing()
        return True

    def _framing(self) -> _Part:
        headers = self.response.headers
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return _Part.SIZE
        length = headers.get("content-length")
        if self.response.status in (204, 304) or length == "0":
            return _Part.DONE
        if length is None:
            return _Part.UNTIL_CLOSE
        if not length.isdigit():
            raise BadResponse(f"its content-length is {length[:40]!r}")
        self._left = int(length)
        return _Part.SIZED

    def _line(self) -> bool:
        line, found, rest = self._rest.partition(LINE)
        if not found:
            return False
        self._rest = rest
        if self._part is _Part.CHUNK_END:
            self._part = _Part.SIZE
        elif self._part is _Part.TRAILER:
            self._part = _Part.TRAILER if line else _Part.DONE
        else:
            self._left = _size(line)
            self._part = _Part.CHUNK if self._left else _Part.TRAILER
        return True

    def _body(self, now_s: float) -> bool:
        if not self._rest:
            return False
        if self._part is _Part.UNTIL_CLOSE:
            self._left = len(self._rest)
        piece, self._rest = self._rest[: self._left], self._rest[self._left :]
        self.response.pieces.append((now_s, piece))
        self._left -= len(piece)
        if not self._left and self._part is not _Part.UNTIL_CLOSE:
            self._part = _Part.CHUNK_END if self._part is _Part.CHUNK else _Part.DONE
        return True


def _size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise BadResponse(f"a chunk's size is {line[:40]!r}") from None
