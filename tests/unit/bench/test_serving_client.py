"""One server's connections: whatever the cuts, the same response; each end of one is told in a sentence."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from slipstream.bench.serving import client
from slipstream.bench.serving.answer import Answer, read_answer
from slipstream.bench.serving.client import address_of, connected
from slipstream.bench.serving.connections import Broken, Connections, Unreachable
from slipstream.bench.serving.response import Response
from slipstream.telemetry.clock import Clock, ManualClock
from tests.patience import patience

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Name: a:b\r\n\r\n"
    b"5\r\nhello\r\n7;ext=1\r\n, world\r\n0\r\nTrailer: x\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not Found\r\ncontent-length: 12\r\n\r\nhello, world"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED
LARGE = 16 << 20  # bytes; more than sockets hold
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n"

Answering = Callable[["Wire"], Awaitable[None]]


class Wire:
    """A server's side of one connection."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number, self.reader, self.writer = number, reader, writer

    async def head(self) -> str:
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def say(self, data: bytes, *, portion: int = 1 << 20) -> None:
        for start in range(0, len(data), portion):
            self.writer.write(data[start : start + portion])
            await self.writer.drain()
            await asyncio.sleep(0)


def asked(answering: Answering, use: Callable[[Connections], Awaitable[None]], clock: Clock | None = None) -> None:
    """Use connections to a server that does as told on each, then hangs up."""
    wires: list[Wire] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wires.append(Wire(len(wires), reader, writer))
        try:
            await answering(wires[-1])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def served() -> AsyncIterator[str]:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def both() -> None:
        async with (
            asyncio.timeout(patience(10)),
            served() as url,
            connected(url, None, clock or Clock()) as connections,
        ):
            await use(connections)

    asyncio.run(both())


def always(wire: bytes, *, portion: int = 1 << 20) -> Answering:
    """The same answer to every request, on a connection that is kept."""

    async def answering(at: Wire) -> None:
        while True:
            await at.head()
            await at.say(wire, portion=portion)

    return answering


def once(wire: bytes) -> Answering:
    """One answer, then the end of the connection."""

    async def answering(at: Wire) -> None:
        await at.head()
        await at.say(wire)

    return answering


def got(answering: Answering) -> Response:
    """The response to one request."""
    found: list[Response] = []

    async def use(connections: Connections) -> None:
        found.append(await connections.ask("GET", "/v1/models"))

    asked(answering, use)
    return found[0]


@pytest.mark.parametrize("wire", [CHUNKED, SIZED, INTERIM], ids=["chunked", "sized", "interim"])
@pytest.mark.parametrize("portion", [1, 2, 3, 7, 1000])
def test_a_response_is_the_same_however_it_is_cut(wire: bytes, portion: int) -> None:
    response = got(always(wire, portion=portion))
    assert response.body == b"hello, world"
    times = [response.began_s, *(at_s for at_s, _ in response.pieces), response.ended_s]
    assert times == sorted(times)
    assert (response.status, response.reason) == ((200, "OK") if wire is CHUNKED else (404, "Not Found"))


@pytest.mark.parametrize("portion", [1, 3, 1000])
def test_an_answer_is_the_same_wherever_an_event_or_a_letter_is_cut(portion: int) -> None:
    events = 'data: {"choices": [{"text": "\u00e9\u4e16"}]}\n\ndata: [DONE]\n\n'.encode()
    cut = [events[start : start + portion] for start in range(0, len(events), portion)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in (*cut, b""))
    answer = read_answer(got(always(CHUNKED.partition(b"5\r\n")[0] + body)))
    assert isinstance(answer, Answer), answer
    assert answer.num_output == 1


def test_names_of_headers_are_small_and_values_keep_their_colons() -> None:
    assert got(always(CHUNKED)).headers == {"transfer-encoding": "chunked", "x-name": "a:b"}


def test_a_body_of_unknown_length_ends_with_the_connection() -> None:
    assert got(once(b"HTTP/1.1 200 OK\r\n\r\nhello, world")).body == b"hello, world"


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (CHUNKED[:-20], "the server hung up within the response"),
        (SIZED[:-3], "the server hung up within the response"),
        (SIZED[:9], "the server hung up without a response"),
        (b"", "the server hung up without a response"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "no HTTP/1.1"),
        (b"HTTP/2 200\r\n\r\n", "no HTTP/1.1"),
        (b"HTTP/1.1 fine\r\n\r\n", "no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n", "no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nmany\r\n", "no HTTP/1.1"),
    ],
)
def test_what_is_no_whole_response_is_said_to_be_none(wire: bytes, said: str) -> None:
    with pytest.raises(Broken, match=said):
        got(once(wire))


@pytest.mark.parametrize(("more", "count"), [(b"\r\n", 1), (b"Connection: Close\r\n\r\n", 3)])
def test_a_connection_is_kept_unless_the_server_says_that_it_closes(more: bytes, count: int) -> None:
    numbers: set[int] = set()

    async def answering(at: Wire) -> None:
        numbers.add(at.number)
        await always(EMPTY + more)(at)

    async def use(connections: Connections) -> None:
        for _ in range(3):
            assert (await connections.ask("GET", "/")).status == 200

    asked(answering, use)
    assert len(numbers) == count


def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    async def use(connections: Connections) -> None:
        for _ in range(3):
            assert (await connections.ask("POST", "/", b"{}")).status == 200
            await asyncio.sleep(0.02)

    asked(once(EMPTY + b"\r\n"), use)


def test_an_idle_connection_is_left_before_servers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "KEPT_S", 0.01)
    numbers: list[int] = []

    async def answering(at: Wire) -> None:
        numbers.append(at.number)
        await always(EMPTY + b"\r\n")(at)

    async def use(connections: Connections) -> None:
        await connections.ask("GET", "/")
        await asyncio.sleep(0.05)
        await connections.ask("GET", "/")

    asked(answering, use)
    assert numbers == [0, 1]


def test_the_time_to_an_answer_holds_the_connection_where_none_is_kept() -> None:
    clock = ManualClock()
    times: list[tuple[float, float]] = []

    async def answering(at: Wire) -> None:
        clock.advance(5)  # it takes so long to be connected
        await always(CHUNKED)(at)

    async def use(connections: Connections) -> None:
        for _ in range(2):
            response = await connections.ask("GET", "/")
            times.append((response.began_s, response.pieces[0][0]))

    asked(answering, use, clock)
    assert times == [(0, 5), (5, 5)]


@pytest.mark.parametrize("begun", [b"", CHUNKED[:-20]], ids=["before the response", "within it"])
def test_a_request_that_is_given_up_hangs_up_and_the_next_one_is_answered(begun: bytes) -> None:
    gone = asyncio.Event()

    async def answering(at: Wire) -> None:
        if at.number:
            await always(SIZED)(at)
        await at.head()
        await at.say(begun)
        assert await at.reader.read() == b""
        gone.set()

    async def use(connections: Connections) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await connections.ask("GET", "/")
        await gone.wait()
        assert (await connections.ask("GET", "/")).status == 404

    asked(answering, use)


def test_a_request_that_is_given_up_while_it_is_sent_hangs_up_too() -> None:
    gone = asyncio.Event()

    async def answering(at: Wire) -> None:
        await at.head()
        await asyncio.sleep(0.2)  # and nothing is read meanwhile
        with pytest.raises(asyncio.IncompleteReadError):
            await at.reader.readexactly(LARGE)
        gone.set()

    async def use(connections: Connections) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await connections.ask("POST", "/", b"x" * LARGE)
        await gone.wait()

    asked(answering, use)


def test_a_run_that_is_cancelled_leaves_nothing_open() -> None:
    gone: list[int] = []

    async def answering(at: Wire) -> None:
        await at.head()
        await at.say(CHUNKED[:-20])
        assert await at.reader.read() == b""
        gone.append(at.number)

    async def use(connections: Connections) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.1, task.cancel)
        await asyncio.gather(*(connections.ask("GET", "/") for _ in range(3)))

    with pytest.raises(asyncio.CancelledError):
        asked(answering, use)
    gc.collect()  # an open session would warn now
    assert sorted(gone) == [0, 1, 2]


def test_a_large_request_is_sent_whole_and_without_a_warning() -> None:
    bodies: list[bytes] = []

    async def answering(at: Wire) -> None:
        assert f"content-length: {LARGE}\r\n" in (await at.head()).lower()
        bodies.append(await at.reader.readexactly(LARGE))
        await at.say(SIZED)

    async def use(connections: Connections) -> None:
        assert (await connections.ask("POST", "/", b"x" * LARGE)).status == 404

    asked(answering, use)
    assert bodies == [b"x" * LARGE]


def test_a_redirection_is_not_followed() -> None:
    there = b"HTTP/1.1 307 Elsewhere\r\nLocation: /there\r\ncontent-length: 0\r\n\r\n"
    assert got(once(there)).headers["location"] == "/there"


def test_a_body_that_stops_making_sense_is_no_http() -> None:
    async def answering(at: Wire) -> None:
        await at.head()
        await at.say(CHUNKED[:-20])
        await asyncio.sleep(0.05)
        await at.say(b"many\r\n")
        await at.reader.read()

    with pytest.raises(Broken, match=r"no HTTP/1\.1: its body stopped making sense"):
        got(answering)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_whoever_cannot_be_reached_is_named_with_the_reason(scheme: str) -> None:
    async def use() -> None:
        async with connected(f"{scheme}://127.0.0.1:9", None, Clock()) as connections:
            await connections.ask("GET", "/")

    with pytest.raises(Unreachable, match=r"^127.0.0.1:9 cannot be reached \(.+\)$"):
        asyncio.run(use())


def test_neither_cookies_nor_proxies_come_between(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    heads: list[str] = []

    async def answering(at: Wire) -> None:
        while True:
            heads.append(await at.head())
            await at.say(EMPTY + b"set-cookie: replica=3\r\n\r\n")

    async def use(connections: Connections) -> None:
        for _ in range(2):
            await connections.ask("GET", "/v1/models")

    asked(answering, use)
    assert [head.split("\r\n")[0] for head in heads] == ["GET /v1/models HTTP/1.1"] * 2
    assert not any("cookie" in head.lower() for head in heads)
    assert all("accept-encoding: identity\r\n" in head.lower() for head in heads)


@pytest.mark.parametrize("key", ["l\u00e4ut", "a\nb", "spaced "])
def test_a_key_that_no_header_holds_is_refused_without_showing_it(key: str) -> None:
    async def use() -> None:
        async with connected("http://127.0.0.1:9", key, Clock()):
            pass

    with pytest.raises(ValueError, match="no header can; check --api-key") as refused:
        asyncio.run(use())
    assert key not in str(refused.value)


def test_addresses_are_read_with_their_defaults() -> None:
    here = address_of("localhost:8000/v1/")
    assert (str(here), here.host_port_subcomponent) == ("http://localhost:8000/", "localhost:8000")
    there = address_of("https://api.example.com:443/llm/v1")
    assert (str(there), there.host_port_subcomponent) == ("https://api.example.com/llm", "api.example.com")
    assert address_of("http://[::1]:8000").host_port_subcomponent == "[::1]:8000"


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "http://", "http://x:port", "http://x:99999", "http://x/?a=1", "http://me:secret@x", "a..b", "x y"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="such as http://localhost:8000"):
        address_of(url)
