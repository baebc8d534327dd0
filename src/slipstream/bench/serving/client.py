"""Connections to one server through an aiohttp session that follows and remembers nothing; needs the extra `serve`.

A time-out is the caller's and of a whole request; one that cancels a request closes its connection, which tells the
server. No proxy stands between the clock and the server, and no cookie ties all requests to one replica.
"""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
from yarl import URL

from slipstream.bench.serving.connections import Broken, Connections, Unreachable
from slipstream.bench.serving.response import Response
from slipstream.telemetry.clock import Clock

KEPT_S = 4.0  # an idle connection; uvicorn hangs up after 5 s, and a request sent at that moment would fail
HEADERS = {"accept": "*/*", "accept-encoding": "identity"}
JSON = {"content-type": "application/json"}


def address_of(url: str) -> URL:
    """Read a URL; one that ends in /v1 means the server above it.

    Raises:
        ValueError: it is none, or holds what no server's address does.
    """
    example = "write one such as http://localhost:8000"
    try:
        found = URL(url if "://" in url else f"http://{url}")
        (found.raw_host or "").encode("idna")  # as the resolver will
    except ValueError:
        raise ValueError(f"--url {url} is no address; {example}") from None
    odd = found.query_string or found.fragment or found.user or found.password
    if found.scheme not in ("http", "https") or len((found.host or "").split()) != 1 or odd:
        raise ValueError(f"--url {url} is no address of an HTTP server; {example}")
    return found.with_path(found.raw_path.rstrip("/").removesuffix("/v1") or "/", encoded=True)


@contextlib.asynccontextmanager
async def connected(url: str, key: str | None, clock: Clock) -> AsyncIterator[Connections]:
    """Connections to the server of a URL.

    Raises:
        ValueError: the URL or the key cannot be sent.
    """
    if key is not None and not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ValueError("the API key holds characters that no header can; check --api-key")
    address = address_of(url)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S),
        headers=HEADERS if key is None else HEADERS | {"authorization": f"Bearer {key}"},
        skip_auto_headers=("user-agent",),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(),  # none of its own
        auto_decompress=False,
        trust_env=False,
    )
    async with session:
        yield _Session(session, address, clock)


class _Session:
    """Connections, by aiohttp."""

    def __init__(self, session: aiohttp.ClientSession, address: URL, clock: Clock) -> None:
        self._session, self._address, self.clock = session, address, clock
        self.name = address.host_port_subcomponent or ""

    async def ask(self, method: str, path: str, body: bytes = b"") -> Response:
        response = Response(began_s=self.clock.now())
        try:
            await self._receive(method, path, body, response)
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(f"{self.name} cannot be reached ({error.strerror or error.os_error})") from None
        except aiohttp.ClientError as error:
            raise Broken(_broken(error, response)) from None
        response.ended_s = self.clock.now()
        return response

    async def _receive(self, method: str, path: str, body: bytes, response: Response) -> None:
        now = self.clock.now
        # BytesIO: aiohttp warns of bytes above 1 MiB
        more: dict[str, Any] = {"data": io.BytesIO(body), "headers": JSON} if body else {}
        url = self._address / path.removeprefix("/")
        async with self._session.request(method, url, allow_redirects=False, **more) as coming:
            response.status, response.reason = coming.status, coming.reason or ""
            response.headers = {name.lower(): value for name, value in coming.headers.items()}
            with _ending_with_its_connection(coming):
                async for piece in coming.content.iter_any():
                    response.pieces.append((now(), piece))


class _Senseless(aiohttp.ClientPayloadError):
    """A body that stopped being one."""


@contextlib.contextmanager
def _ending_with_its_connection(coming: aiohttp.ClientResponse) -> Iterator[None]:
    """End a body that aiohttp's parser in C could not read: it closes the connection, and tells no reader."""
    protocol = None if coming.connection is None else coming.connection.protocol
    closed = None if protocol is None else protocol.closed

    def end(_: object) -> None:
        if not coming.content.is_eof() and coming.content.exception() is None:
            coming.content.set_exception(_Senseless("its body stopped making sense"))

    if closed is None:  # all of it is here
        yield
        return
    closed.remove_done_callback(_heard)  # of an earlier request
    closed.add_done_callback(_heard)
    closed.add_done_callback(end)
    try:
        yield
    finally:
        closed.remove_done_callback(end)


def _heard(closed: asyncio.Future[None]) -> None:
    """The reason is the reader's; asyncio would log one that nobody asked for."""
    closed.exception()


def _broken(error: aiohttp.ClientError, response: Response) -> str:
    if isinstance(error, aiohttp.ClientResponseError):
        return f"what came is no HTTP/1.1: {' '.join(error.message.split())}"
    if isinstance(error, _Senseless):
        return f"what came is no HTTP/1.1: {error}"
    return f"the server hung up {'within the response' if response.status else 'without a response'}"
