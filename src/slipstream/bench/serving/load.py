"""Put a server under load: so many requests, at a rate or so many at a time, and note what became of each."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.bench.serving.answer import Answer, Failure, Reason, read_answer
from slipstream.bench.serving.connections import Broken, Connections, Unreachable

LOOK_S = 0.01  # between two looks at how late the client's own loop is

Outcome = Answer | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How hard the server is pressed."""

    max_concurrency: int | None  # requests in flight; None = no limit
    request_rate: float  # requests a second, Poisson arrivals; inf = as soon as there is room
    timeout_s: float  # of each request
    seed: int  # of the arrivals


@dataclass(slots=True, kw_only=True)
class Strain:
    """How far the client itself was in the way."""

    lags_s: list[float] = field(default_factory=list)  # how much later than asked for its loop came round
    cpu_s: float = 0.0  # processor time of this process


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that happened under one level."""

    outcomes: tuple[Outcome, ...]  # in the order of the requests
    seconds: float  # from the first request to the end of the last
    began_s: float
    strain: Strain

    @property
    def answers(self) -> list[Answer]:
        """The requests that were answered."""
        return [each for each in self.outcomes if isinstance(each, Answer)]

    @property
    def failures(self) -> list[Failure]:
        """Those that were not."""
        return [each for each in self.outcomes if isinstance(each, Failure)]


async def press(
    connections: Connections,
    path: str,
    bodies: Sequence[bytes],
    level: Level,
    *,
    on_end: Callable[[Outcome], None] = lambda outcome: None,
) -> Run:
    """Send every body once; on_end hears of each as it ends."""
    clock, strain = connections.clock, Strain()
    room = asyncio.Semaphore(level.max_concurrency or max(1, len(bodies)))
    watching = asyncio.create_task(_watch(strain))
    began_s, cpu_s = clock.now(), time.process_time()

    async def one(body: bytes, at_s: float) -> Outcome:
        await asyncio.sleep(began_s + at_s - clock.now())
        async with room:
            outcome = await ask(connections, path, body, level.timeout_s)
        on_end(outcome)
        return outcome

    try:
        pairs = zip(bodies, arrivals(level, len(bodies)), strict=True)
        outcomes = await asyncio.gather(*(one(body, at_s) for body, at_s in pairs))
    finally:
        watching.cancel()
    seconds = clock.now() - began_s
    strain.cpu_s = time.process_time() - cpu_s
    return Run(outcomes=tuple(outcomes), seconds=seconds, began_s=began_s, strain=strain)


async def ask(connections: Connections, path: str, body: bytes, timeout_s: float) -> Outcome:
    """One request, whatever becomes of it."""
    clock = connections.clock
    began_s = clock.now()
    try:
        async with asyncio.timeout(timeout_s):
            response = await connections.ask("POST", path, body)
    except TimeoutError:
        reason, sentence = Reason.TIMEOUT, f"not done within {timeout_s:g} s"
    except Unreachable as error:
        reason, sentence = Reason.UNREACHABLE, str(error)
    except Broken as error:
        reason, sentence = Reason.BROKEN, str(error)
    else:
        return read_answer(response)
    return Failure(reason=reason, sentence=sentence, began_s=began_s, ended_s=clock.now())


def arrivals(level: Level, count: int) -> list[float]:
    """When each request comes, seconds from the first: at once, or a Poisson process of the rate."""
    if math.isinf(level.request_rate):
        return [0.0] * count
    source, now, found = random.Random(level.seed), 0.0, []
    for _ in range(count):
        found.append(now)
        now += source.expovariate(level.request_rate)
    return found


async def _watch(strain: Strain) -> None:
    """Come round again and again, and note how late; asyncio's own clock has the resolution of the system's."""
    while True:
        due_s = time.perf_counter() + LOOK_S
        await asyncio.sleep(LOOK_S)
        strain.lags_s.append(max(0.0, time.perf_counter() - due_s))
