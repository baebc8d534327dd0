"""How many answers may be in flight, waiting ones too; beyond that clients are told to come back."""

import contextlib
from collections.abc import Iterator

from slipstream.serve.http.errors import ApiError, bad_request


class Limits:
    """Counts; one event loop's."""

    def __init__(self, most: int) -> None:
        self.most, self.num_open, self.draining = most, 0, False

    def check(self, count: int) -> None:
        """Refuse what there is no room for now.

        Raises:
            ApiError: 429 while there is none, 503 while the server is going down, 400 if there could never be.
        """
        if self.draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        if count > self.most:
            raise bad_request(f"{count} answers were asked for and at most {self.most} can be in flight", param="n")
        if self.num_open + count > self.most:
            raise ApiError(
                429,
                f"{self.num_open} answers are in flight and at most {self.most} may be; try again in a moment",
                code="too_many_requests",
            )

    @contextlib.contextmanager
    def room_for(self, count: int) -> Iterator[None]:
        """Hold room for so many answers; ApiError as `check`."""
        self.check(count)
        self.num_open += count
        try:
            yield
        finally:
            self.num_open -= count
