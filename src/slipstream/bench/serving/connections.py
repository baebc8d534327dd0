"""Connections to one server, kept open between requests; nothing but asyncio, so that the client costs little.

A time-out is the caller's: one that cancels a request closes its connection, which tells the server.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from slipstream.bench.serving.response import BadResponse, Response, ResponseReader
from slipstream.telemetry.clock import Clock

PORTS = {"http": 80, "https": 443}


class Unreachable(Exception):
    """No connection; the words say why."""


class Broken(Exception):
    """A connection ended within a response, or carried something else; the words say what."""


class _Stale(Exception):
    """A kept connection was closed by the server before it answered anything: nothing was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is."""

    host: str
    port: int
    secure: bool
    path: str  # before every other; no slash at its end

    @property
    def name(self) -> str:
        """Host and port, as a Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS["https" if self.secure else "http"] else f"{host}:{self.port}"


def address_of(url: str) -> Address:
    """Read a URL; one that ends in /v1 means the server above it.

    Raises:
        ValueError: it is none, or holds what no server's address does.
    """
    example = "write one such as http://localhost:8000"
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        raise ValueError(f"--url {url} is no address; {example}") from None
    if parts.scheme not in PORTS or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError(f"--url {url} is no address of an HTTP server; {example}")
    return Address(
        host=parts.hostname,
        port=port or PORTS[parts.scheme],
        secure=parts.scheme == "https",
        path=parts.path.rstrip("/").removesuffix("/v1"),
    )


class Connection(asyncio.Protocol):
    """Carries one request at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._reader = clock, ResponseReader()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Response] | None = None
        self.open, self.used = True, False

    async def ask(self, request: bytes, began_s: float) -> Response:
        """Send bytes and wait for the response.

        Raises:
            Broken: it does not come whole.
            _Stale: the server had hung up before.
        """
        assert self._transport is not None, "it is connected"
        self._reader = reader = ResponseReader()
        reader.response.began_s = began_s
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            response = await self._waiter
        except BaseException:
            self.abort()
            raise
        finally:
            self._waiter = None
        self.used = True
        if not reader.may_be_kept:
            self.abort()
        return response

    def abort(self) -> None:
        """Hang up at once."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now_s = self._clock.now()
        if self._waiter is None or self._waiter.done():
            self.abort()
            return
        try:
            if self._reader.feed(data, now_s):
                self._finish(now_s)
        except BadResponse as error:
            self._waiter.set_exception(Broken(str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._waiter is None or self._waiter.done():
            return
        if exc is None and self._reader.close():
            self._finish(self._clock.now())
        elif self.used and not self._reader.begun:
            self._waiter.set_exception(_Stale())
        else:
            where = "within the response" if self._reader.begun else "without a response"
            self._waiter.set_exception(Broken(f"the server hung up {where}"))

    def _finish(self, now_s: float) -> None:
        assert self._waiter is not None, "somebody waits"
        self._reader.response.ended_s = now_s
        self._waiter.set_result(self._reader.response)


class Connections:
    """As many as there are requests at a time."""

    def __init__(self, address: Address, headers: Mapping[str, str], clock: Clock) -> None:
        self.address, self.clock = address, clock
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._tls = ssl.create_default_context() if address.secure else None
        self._kept: list[Connection] = []

    async def ask(self, method: str, path: str, body: bytes = b"") -> Response:
        """One request; its clock starts before a connection is made, where none is kept.

        Raises:
            Unreachable, Broken: there is no whole response.
        """
        began_s = self.clock.now()
        kind = "content-type: application/json\r\n" if body else ""
        head = (
            f"{method} {self.address.path}{path} HTTP/1.1\r\nhost: {self.address.name}\r\naccept: */*\r\n"
            f"{self._headers}{kind}content-length: {len(body)}\r\n\r\n"
        )
        while True:
            connection = self._take() or await self._connect()
            with contextlib.suppress(_Stale):
                response = await connection.ask(head.encode("latin-1") + body, began_s)
                if connection.open:
                    self._kept.append(connection)
                return response

    def close(self) -> None:
        """Hang up everywhere."""
        while self._kept:
            self._kept.pop().abort()

    def _take(self) -> Connection | None:
        while self._kept:
            connection = self._kept.pop()
            if connection.open:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop, address = asyncio.get_running_loop(), self.address
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self.clock), address.host, address.port, ssl=self._tls
            )
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise Unreachable(f"{address.name} cannot be reached ({why})") from None
        return connection


@contextlib.asynccontextmanager
async def connected(url: str, key: str | None, clock: Clock) -> AsyncIterator[Connections]:
    """Connections to the server of a URL.

    Raises:
        ValueError: the URL or the key cannot be sent.
    """
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ValueError("the API key holds characters that no header can; check --api-key")
    found = Connections(address_of(url), {} if key is None else {"authorization": f"Bearer {key}"}, clock)
    try:
        yield found
    finally:
        found.close()
