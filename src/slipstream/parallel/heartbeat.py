"""What ranks tell each other about their health: small UDP datagrams, which need nothing but an address.

UDP works alike for processes of one host, of torchrun's nodes and of Ray's; it never blocks, and it does not share the
fate of the collectives it watches.
"""

import json
import os
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum

from slipstream.parallel.process import start_ticks
from slipstream.parallel.stamps import Stage, Stamps

TOKEN_BYTES = 16
SENTENCE_BYTES = 500
_BUFFER_BYTES = 1 << 20  # heartbeats that wait while this process is stopped or holds the interpreter's lock
_HEAD = struct.Struct("!16sHIqBBBd")  # token, rank, sequence, cycle, stage, active, state, still_s
_FAILURE = struct.Struct("!BHH")  # kind, origin, reporter; the sentence follows


class State(IntEnum):
    """What a rank says of itself."""

    ALIVE = 0
    FAILED = 1  # it knows that the group has failed, and how
    LEAVING = 2
    INTERRUPTED = 3  # Ctrl-C has reached it; it ends in its own way, or its watchdog ends it within interrupt_s


class Kind(IntEnum):
    """Why a group ends; of two causes seen at once the lower one is believed."""

    INTERRUPTED = 0
    GONE = 1  # its process has ended
    RAISED = 2
    SILENT = 3  # no heartbeat: stopped, or its host or network is down
    STUCK = 4  # heartbeats, but no progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The end of a group, as every rank reports it."""

    kind: Kind
    origin: int  # the rank that failed
    reporter: int  # the rank that found out
    sentence: str  # at most SENTENCE_BYTES in a datagram


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One datagram."""

    rank: int
    sequence: int
    cycle: int
    stage: Stage
    active: bool  # whether the rank is at work, and so must move
    still_s: float  # seconds since its last progress
    state: State
    failure: Failure | None = None  # with FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One rank of the group, as it introduces itself before the heartbeats start."""

    rank: int
    host_name: str
    address: tuple[str, int]  # IP and UDP port
    pid: int
    started: int | None  # ticks since boot, so that a later process with this pid is not taken for it
    page_fd: int | None = None  # of the process's stamps

    def as_text(self) -> str:
        """JSON, for whatever store the ranks meet in."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> "Peer":
        """Read what as_text wrote."""
        fields = json.loads(text)
        return Peer(**{**fields, "address": tuple(fields["address"])})

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on host {self.host_name})"


def this_peer(rank: int, sock: socket.socket, stamps: Stamps) -> Peer:
    """Introduce this process, which listens on a socket of open_socket and says where it is in its stamps."""
    ip, port = sock.getsockname()[:2]
    pid = os.getpid()
    return Peer(
        rank=rank,
        host_name=socket.gethostname(),
        address=(ip, port),
        pid=pid,
        started=start_ticks(pid),
        page_fd=stamps.page.fd,
    )


def new_token() -> bytes:
    """Random bytes that one rank draws and all share: datagrams of other groups do not carry them."""
    return secrets.token_bytes(TOKEN_BYTES)


def open_socket(ip: str) -> socket.socket:
    """Bind a UDP socket to a free port of the address under which the other ranks reach this one.

    Raises:
        OSError: if this machine does not have that address.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    sock.settimeout(0)
    sock.bind((ip, 0))
    return sock


class Post:
    """Sends to and receives from the other ranks of one group; never blocks, never raises."""

    def __init__(self, sock: socket.socket, token: bytes, others: Sequence[Peer]) -> None:
        assert len(token) == TOKEN_BYTES, "new_token draws it"
        self._socket, self._token = sock, token
        self._addresses = [peer.address for peer in others]

    def send(self, beat: Beat) -> None:
        """Tell every other rank; what the network refuses is lost like a datagram."""
        datagram = encode(beat, self._token)
        for address in self._addresses:
            with suppress(OSError):
                self._socket.sendto(datagram, address)

    def receive(self) -> Iterator[Beat]:
        """All that has come since the last call."""
        while (datagram := self._next()) is not None:
            beat = decode(datagram, self._token)
            if beat is not None:
                yield beat

    def close(self) -> None:
        self._socket.close()

    def _next(self) -> bytes | None:
        while True:
            try:
                return self._socket.recv(_HEAD.size + _FAILURE.size + SENTENCE_BYTES)
            except ConnectionError:  # an earlier datagram was refused: the port's process has ended
                continue
            except OSError:
                return None


def encode(beat: Beat, token: bytes) -> bytes:
    """A beat as bytes."""
    head = _HEAD.pack(token, beat.rank, beat.sequence, beat.cycle, beat.stage, beat.active, beat.state, beat.still_s)
    failure = beat.failure
    if failure is None:
        return head
    sentence = failure.sentence.encode()[:SENTENCE_BYTES]
    return head + _FAILURE.pack(failure.kind, failure.origin, failure.reporter) + sentence


def decode(datagram: bytes, token: bytes) -> Beat | None:
    """The beat, or None for what is not of this group."""
    if not secrets.compare_digest(datagram[:TOKEN_BYTES], token):
        return None
    try:
        return _beat(datagram)
    except (struct.error, ValueError):  # another version's, or cut short
        return None


def _beat(datagram: bytes) -> Beat:
    _, rank, sequence, cycle, stage, active, state, still_s = _HEAD.unpack_from(datagram)
    return Beat(
        rank=rank,
        sequence=sequence,
        cycle=cycle,
        stage=Stage(stage),
        active=bool(active),
        still_s=still_s,
        state=State(state),
        failure=_failure(datagram) if state == State.FAILED else None,
    )


def _failure(datagram: bytes) -> Failure:
    kind, origin, reporter = _FAILURE.unpack_from(datagram, _HEAD.size)
    sentence = datagram[_HEAD.size + _FAILURE.size :].decode(errors="ignore")
    return Failure(kind=Kind(kind), origin=origin, reporter=reporter, sentence=sentence)
