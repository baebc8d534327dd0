"""How rank 0 tells the others what comes next: one authenticated socket to each, pickled plain values.

A collective cannot carry this: an idle group would sit in it, and a dead rank 0 would not be noticed.
"""

import json
import pickle
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from typing import Any

import torch.distributed as dist

from slipstream.parallel.spot import Spot

KEY = "slipstream/channel/{attempt}"  # in the store; a launcher that restarts a group keeps what it held
Wire = Any  # multiprocessing.connection.Connection; its type differs between systems
CONNECT_TIMEOUT_S = 600.0  # nodes may start minutes apart


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The last order: rank 0 leaves in peace. Without it a connection that ends means that rank 0 is lost."""


class Leader:
    """Rank 0's end: it tells all, and hears from each."""

    def __init__(self, connections: Sequence[Wire]) -> None:
        """connections: of ranks 1, 2, ... in this order."""
        self._connections = connections

    def tell(self, order: object) -> None:
        """Send an order to every other rank."""
        message = pickle.dumps(order, protocol=pickle.HIGHEST_PROTOCOL)
        for connection in self._connections:
            connection.send_bytes(message)

    def hear(self) -> list[Any]:
        """Wait for one answer of each other rank, in rank order."""
        return [connection.recv() for connection in self._connections]

    def send_each(self, values: Sequence[object]) -> None:
        """Send each other rank a value of its own."""
        for connection, value in zip(self._connections, values, strict=True):
            connection.send(value)

    def close(self) -> None:
        """Say goodbye and hang up."""
        for connection in self._connections:
            with suppress(OSError):
                connection.send(Goodbye())
            connection.close()


class Follower:
    """Another rank's end."""

    def __init__(self, connection: Wire) -> None:
        self._connection = connection

    def hear(self) -> Any:
        """Wait for the next order.

        Raises:
            EOFError, ConnectionError: rank 0 is gone.
        """
        return self._connection.recv()

    def answer(self, value: object) -> None:
        """Answer rank 0."""
        self._connection.send(value)

    def own_address(self) -> str:
        """The address under which this host reaches rank 0."""
        with socket.socket(fileno=_copy(self._connection.fileno())) as sock:
            return sock.getsockname()[0]

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def _key(spot: Spot) -> str:
    return KEY.format(attempt=spot.attempt)


def refuse_second_group(spot: Spot, store: dist.Store) -> None:
    """Look whether the ranks that a launcher started have met before: they served that engine, and have ended.

    Raises:
        ValueError: they have.
    """
    if store.check([_key(spot)]):
        raise ValueError(
            "the ranks that the launcher started serve one engine, and this process has made one already; change it"
            " with reconfigure, or start without the launcher, with --tp"
        )


def open_leader(spot: Spot, store: dist.Store, *, lost: Callable[[], str | None]) -> Leader:
    """Wait for every other rank; lost says in a sentence which one will never come, or None.

    Raises:
        ValueError: a rank is lost, or did not connect in time.
    """
    host, key = socket.gethostbyname(spot.address), secrets.token_bytes(32)
    with Listener((host, 0), backlog=spot.size, authkey=key) as listener:
        store.set(_key(spot), json.dumps([host, listener.address[1], key.hex()]))
        arrived: dict[int, Wire] = {}
        thread = threading.Thread(target=_accept, args=(listener, arrived, spot.size - 1), daemon=True)
        thread.start()
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while thread.is_alive():
            thread.join(0.05)
            absent = [rank for rank in range(1, spot.size) if rank not in arrived]
            sentence = lost() if absent else None
            if sentence is None and time.monotonic() > deadline:
                sentence = f"ranks {absent} did not connect within {CONNECT_TIMEOUT_S:.0f} s; look at their output"
            if sentence is not None:
                raise ValueError(sentence)
    return Leader([arrived[rank] for rank in range(1, spot.size)])


def open_follower(spot: Spot, store: dist.Store) -> Follower:
    """Connect to rank 0."""
    host, port, key = json.loads(store.get(_key(spot)))
    connection = without_delay(Client((host, port), authkey=bytes.fromhex(key)))
    connection.send(spot.rank)
    return Follower(connection)


def _accept(listener: Listener, arrived: dict[int, Wire], count: int) -> None:
    while len(arrived) < count:
        try:
            connection = without_delay(listener.accept())
            arrived[connection.recv()] = connection
        except (AuthenticationError, EOFError):  # a stranger knocked
            continue
        except OSError:  # the listener was closed
            return


def without_delay(connection: Wire) -> Wire:
    """The same connection; a small message does not wait for the receipt of the last one.

    Orders are not answered, and a receipt that no answer carries comes after 40 ms (Nagle's algorithm beside delayed
    acknowledgements): a rank that hears of a cycle so late holds up all others.
    """
    with socket.socket(fileno=_copy(connection.fileno())) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _copy(descriptor: int) -> int:
    with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as sock:
        return sock.detach()
