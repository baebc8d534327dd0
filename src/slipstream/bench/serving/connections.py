"""What is asked of a server's connections, and how they fail; bench/serving/client.py makes them."""

from typing import Protocol

from slipstream.bench.serving.response import Response
from slipstream.telemetry.clock import Clock


class Unreachable(Exception):
    """No connection; the words say why."""


class Broken(Exception):
    """A connection ended within a response, or carried something else; the words say what."""


class Connections(Protocol):
    """As many to one server as there are requests at a time, kept open between them."""

    @property
    def clock(self) -> Clock:
        """The one that responses are timed by."""
        ...

    @property
    def name(self) -> str:
        """Host and port of the server, as a Host header has them."""
        ...

    async def ask(self, method: str, path: str, body: bytes = b"") -> Response:
        """One request; its clock starts before a connection is made, where none is kept.

        Raises:
            Unreachable, Broken: there is no whole response.
        """
        ...
