"""Connections to one server, kept open between requests: httpx's transports, which follow and remember nothing.

A time-out is the caller's and of a whole request; one that cancels a request closes its connection, which tells the
server. No proxy stands between the clock and the server, and no cookie ties all requests to one replica.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping

import httpx

from slipstream.bench.serving.response import Response
from slipstream.telemetry.clock import Clock

KEPT_S = 4.0  # an idle connection; uvicorn hangs up after 5 s, and a request sent at that moment would fail
MOST_PORT = 0xFFFF
JSON = {"content-type": "application/json"}


class Unreachable(Exception):
    """No connection; the words say why."""


class Broken(Exception):
    """A connection ended within a response, or carried something else; the words say what."""


def address_of(url: str) -> httpx.URL:
    """Read a URL; one that ends in /v1 means the server above it.

    Raises:
        ValueError: it is none, or holds what no server's address does.
    """
    example = "write one such as http://localhost:8000"
    try:
        found = httpx.URL(url if "://" in url else f"http://{url}")
    except httpx.InvalidURL:
        raise ValueError(f"--url {url} is no address; {example}") from None
    odd = found.query or found.fragment or found.userinfo or (found.port or 0) > MOST_PORT
    if found.scheme not in ("http", "https") or not found.host or odd:
        raise ValueError(f"--url {url} is no address of an HTTP server; {example}")
    return found.copy_with(path=found.path.rstrip("/").removesuffix("/v1") or "/")


class Connections:
    """As many as there are requests at a time, each a transport of its own.

    A pool of httpx counts its connections once for each idle one, at the start and the end of every request: with 128
    of them that is most of what the client would do.
    """

    def __init__(self, address: httpx.URL, headers: Mapping[str, str], clock: Clock) -> None:
        self._address, self.clock = address, clock
        self._headers = {"accept": "*/*", "accept-encoding": "identity", **headers}
        self._tls = ssl.create_default_context()  # the system's authorities, where httpx would bring its own
        self._idle: list[httpx.AsyncHTTPTransport] = []

    @property
    def name(self) -> str:
        """Host and port of the server, as a Host header has them."""
        return self._address.netloc.decode()

    async def ask(self, method: str, path: str, body: bytes = b"") -> Response:
        """One request; its clock starts before a connection is made, where none is kept.

        Raises:
            Unreachable, Broken: there is no whole response.
        """
        response = Response(began_s=self.clock.now())
        url = self._address.copy_with(path=self._address.path.rstrip("/") + path)
        request = httpx.Request(method, url, headers=self._headers | (JSON if body else {}), content=body)
        transport = self._idle.pop() if self._idle else self._transport()
        try:
            await self._receive(transport, request, response)
        except httpx.ConnectError as error:
            raise Unreachable(f"{self.name} cannot be reached ({_cause(error)})") from None
        except httpx.TransportError as error:
            raise Broken(_broken(error, response)) from None
        finally:
            self._idle.append(transport)  # it has closed what it cannot use again
        response.ended_s = self.clock.now()
        return response

    async def close(self) -> None:
        """Hang up everywhere."""
        while self._idle:
            await self._idle.pop().aclose()

    def _transport(self) -> httpx.AsyncHTTPTransport:
        kept = httpx.Limits(keepalive_expiry=KEPT_S)
        return httpx.AsyncHTTPTransport(verify=self._tls, limits=kept)

    async def _receive(self, transport: httpx.AsyncHTTPTransport, request: httpx.Request, response: Response) -> None:
        now = self.clock.now
        async with contextlib.aclosing(await transport.handle_async_request(request)) as coming:
            response.status, response.reason = coming.status_code, coming.reason_phrase
            response.headers = dict(coming.headers)
            async for piece in coming.aiter_raw():
                response.pieces.append((now(), piece))


@contextlib.asynccontextmanager
async def connected(url: str, key: str | None, clock: Clock) -> AsyncIterator[Connections]:
    """Connections to the server of a URL.

    Raises:
        ValueError: the URL or the key cannot be sent.
    """
    if key is not None and not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ValueError("the API key holds characters that no header can; check --api-key")
    found = Connections(address_of(url), {} if key is None else {"authorization": f"Bearer {key}"}, clock)
    try:
        yield found
    finally:
        await found.close()


def _cause(error: BaseException) -> str:
    """The system's own words, which libraries wrap."""
    inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
    if inner is not None:
        return _cause(inner)
    return getattr(error, "strerror", None) or str(error)


def _broken(error: httpx.TransportError, response: Response) -> str:
    if isinstance(error, httpx.ProtocolError) and "connect" not in str(error):
        return f"what came is no HTTP/1.1: {error}"
    return f"the server hung up {'within the response' if response.status else 'without a response'}"
