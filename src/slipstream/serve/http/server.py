"""Run the door: listen at once, load meanwhile, drain when told to, end when the engine does."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn

from slipstream.parallel.watchdog import GroupError
from slipstream.serve.http.app import make_app
from slipstream.serve.http.client import EngineClient, Phase
from slipstream.serve.http.errors import ApiError
from slipstream.serve.http.house import make_house
from slipstream.serve.http.reply import House
from slipstream.serve.http.settings import EngineSettings, HttpSettings
from slipstream.serve.http.texts import Texts

BACKLOG = 2048
LOOK_S = 0.05  # between two looks at what is still in flight
LAST_WORDS_S = 2.0  # for errors to reach their clients


class QuietServer(uvicorn.Server):
    """uvicorn, but who ends it, and when, is decided here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(http: HttpSettings, engine: EngineSettings) -> None:
    """Serve until a signal, or the engine's end.

    Raises:
        ValueError: the port is taken, or the model cannot be loaded as asked.
        GroupError: the engine's process has ended.
    """
    texts = Texts.load(engine)
    with listening(http.host, http.port) as sock:
        asyncio.run(_serve(http, engine, texts, sock))


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ValueError: there is no such address, or another process has it.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"cannot listen on {host} port {port} ({why}); choose another --host or --port") from None


async def _serve(http: HttpSettings, engine: EngineSettings, texts: Texts, sock: socket.socket) -> None:
    house = make_house(http, engine, texts)
    client = house.client
    config = uvicorn.Config(make_app(house), log_config=None, access_log=False, lifespan="off", server_header=False)
    server = QuietServer(config)
    signals = Signals()
    await client.start()
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    host, port = sock.getsockname()[:2]
    house.log.event("listening", url=f"http://{f'[{host}]' if ':' in host else host}:{port}", engine_pid=client.pid)
    try:
        await _until_the_end(house, signals)
    finally:
        server.should_exit = True
        server.force_exit = house.limits.num_open > 0  # a client that does not read is not waited for
        await serving
        await client.stop()
    _say_why(client)


class Signals:
    """Counts SIGTERM and SIGINT: the first one drains, the second one stops."""

    def __init__(self) -> None:
        self.count = 0
        self.first, self.second = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._heard)

    def _heard(self) -> None:
        self.count += 1
        (self.first if self.count == 1 else self.second).set()


async def _until_the_end(house: House, signals: Signals) -> None:
    announced = asyncio.create_task(_announce(house))
    try:
        await _first_of(signals.first.wait(), house.client.ended.wait())
        if house.client.ended.is_set():
            await _wait_for_none(house, LAST_WORDS_S)
            return
        house.limits.draining = True
        house.log.event("draining", answers_in_flight=house.limits.num_open, seconds=house.settings.drain_s)
        drained = _wait_for_none(house, house.settings.drain_s)
        await _first_of(drained, signals.second.wait(), house.client.ended.wait())
        house.log.event("stopping", answers_in_flight=house.limits.num_open)
        house.client.cut(ApiError(503, "the server has shut down", code="shutting_down"))
        await _wait_for_none(house, LAST_WORDS_S)
    finally:
        announced.cancel()


async def _announce(house: House) -> None:
    """Say when requests are answered."""
    while house.client.phase is Phase.LOADING:
        await asyncio.sleep(LOOK_S)
    if house.client.phase is Phase.READY:
        told = ("device", "dtype", "tp", "load_s", "warm_up_s", "graphs")
        house.log.event("ready", **{name: house.client.info[name] for name in told})


async def _wait_for_none(house: House, seconds: float) -> None:
    """Until no answer is in flight, but so long at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while house.limits.num_open:
                await asyncio.sleep(LOOK_S)


async def _first_of(*waits: object) -> None:
    tasks = [asyncio.ensure_future(each) for each in waits]  # type: ignore[arg-type]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _say_why(client: EngineClient) -> None:
    """Raises what ended the engine, if it was not this process."""
    if client.failure is None:
        return
    if client.failure.bad_input:
        raise ValueError(client.failure.sentence)
    raise GroupError(client.failure.sentence)
