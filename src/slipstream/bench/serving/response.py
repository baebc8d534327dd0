"""What an HTTP server answered, each piece of its body with the time at which it came.

The pieces are only kept here: reading what is in them waits until the response has ended, so that as little as possible
runs between two of them.
"""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Response:
    """One response; it grows while it comes in."""

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
