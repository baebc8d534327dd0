"""Every rank watches every other from a thread of its own, so that a dead, stopped or stuck rank ends the group.

The thread touches neither torch nor the device: it works while the main thread is stuck in a collective.
"""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from socket import socket

from slipstream.parallel.attention import Attention
from slipstream.parallel.ending import Ending
from slipstream.parallel.heartbeat import Beat, Failure, Peer, Post, State
from slipstream.parallel.report import print_line, write_ring
from slipstream.parallel.ring import DecisionRing
from slipstream.parallel.roll import Limits, Roll, truer
from slipstream.parallel.stamps import Stamps
from slipstream.parallel.wakeup import Wakeup
from slipstream.telemetry.clock import Clock

_BLAME_S = 1.0  # for the cause of an exception to become known
_QUIET_S = 0.8  # without a heartbeat, of a rank that an exception may be blamed on
_HOLD_S = 1.5  # for the others to hear, before the main thread goes on to exit
_NAP_S = 0.5  # between two looks; what it slept beyond that is not held against the others
_HURRY_S = 0.05  # between looks once the group has failed
_REPEATS = 3  # of a message that must not be lost
_WRITE_S = 1.0  # for the ring; a folder on a dead server would hang for ever


class GroupError(RuntimeError):
    """The group of ranks has ended; the message is the sentence that every rank reports."""


class Watchdog:
    """Start it when all addresses are known; then wait_for_all. On an exception `raise watchdog.blame(error)`."""

    def __init__(
        self,
        rank: int,
        group: Sequence[Peer],
        *,
        sock: socket,
        token: bytes,
        stamps: Stamps,
        ring: DecisionRing,
        ring_path: Path,
        limits: Limits | None = None,
        on_failure: Callable[[str], None] | None = None,
        clock: Clock | None = None,
        end_process: Callable[[int], object] = os._exit,
    ) -> None:
        """group: all ranks, this one too. ring_path: the folder of the rings. clock and end_process: for tests.

        on_failure is handed the sentence, on the watchdog's thread; what could wake the main thread belongs there.
        """
        others = [peer for peer in group if peer.rank != rank]
        self._me = next(peer for peer in group if peer.rank == rank)
        self._post, self._stamps, self._ring = Post(sock, token, others), stamps, ring
        self._ring_path = ring_path
        self._limits = limits or Limits()
        self._on_failure, self._end_process = on_failure, end_process
        self._attention = Attention(clock or Clock(), longest_s=max(_NAP_S, 2 * self._limits.interval_s))
        self._roll = Roll(self._me, others, self._limits, now=0.0)
        self._changed = threading.Condition()  # guards all below
        self._sequence = 0
        self._state = State.ALIVE
        self._failure: Failure | None = None
        self._failed_at = 0.0
        self._ending: Ending | None = None  # from when the failure is settled
        self._sentence: str | None = None
        self._accounted = False
        self._noticed_at: float | None = None
        self._progress: tuple[int, ...] = ()
        self._moved_at = 0.0
        self._interrupted_at: float | None = None
        self._stopping = False
        self._bell = Wakeup()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    # ------------------------------------------------------------------ the main thread's

    @property
    def failure(self) -> str | None:
        """The sentence that ends the group, or None while all is well."""
        return self._sentence

    def start(self) -> None:
        """Send and expect heartbeats from now on. Call it on the main thread: rank 0 then hears Ctrl-C at all times."""
        if self._me.rank == 0:
            self._bell.catch_signals()
        self._thread.start()

    def wait_for_all(self, timeout_s: float) -> None:
        """Wait for one heartbeat of every rank.

        Raises:
            GroupError: naming the ranks that were not heard, or the failure of one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._sentence or not self._roll.unheard(), timeout_s)
            if self._sentence is not None:
                raise GroupError(self._sentence)
            missing = self._roll.unheard()
        if missing:
            who = ", ".join(map(str, missing))
            raise GroupError(
                f"{self._me} heard no heartbeat of {who} within {timeout_s:g} s: it did not start, or UDP is blocked"
                f" between the hosts; allow UDP between them and restart"
            )

    def blame(self, error: BaseException) -> GroupError:
        """Turn what a rank's main thread caught into the sentence of the group; waits up to a second for the cause.

        A collective that fails names a socket; the rank behind it is known here a moment later. Without another cause
        the exception is this rank's own failure. The main thread then has to exit; rank 0's may go on.
        """
        roll, reason = self._roll, f"{type(error).__name__}: {error}"
        return self._announce(lambda own, now: roll.silent(_QUIET_S, own, now) or roll.raised(own, reason), _BLAME_S)

    def announce_failure(self, reason: str) -> GroupError:
        """Tell the others that this rank has failed, with no doubt about whose fault it is."""
        return self._announce(lambda own, now: self._roll.raised(own, reason))

    def announce_interruption(self) -> GroupError:
        """Tell the others that the main thread has heard Ctrl-C in the middle of a cycle."""
        self.acknowledge()
        return self._announce(lambda own, now: self._roll.interrupted(own))

    def acknowledge(self) -> None:
        """The main thread has heard Ctrl-C and deals with it."""
        with self._changed:
            self._interrupted_at = None

    def leaving(self) -> None:
        """This rank is done: the others must not take its end for a failure."""
        with self._changed:
            if self._state is State.ALIVE:
                self._state = State.LEAVING
            self._interrupted_at = None
            self._tell()

    def stop(self) -> None:
        """Leave, and end the thread; the last call, on the main thread. After a failure the thread sees to the rest."""
        self.leaving()
        self._bell.release_signals()
        with self._changed:
            self._notice()
            failed = self._failure is not None and self._thread.is_alive()
            self._changed.wait_for(lambda: self._accounted or not failed, _HOLD_S)
            self._stopping = not failed
        self._bell.ring()
        if not failed and self._thread.is_alive():
            self._thread.join(_HOLD_S)
        if not self._thread.is_alive():
            self._close()

    # ------------------------------------------------------------------ the thread's

    def _run(self) -> None:
        while not self._stopping:
            signals = self._bell.wait(self._limits.interval_s if self._failure is None else _HURRY_S)
            self.tick(interrupted=signal.SIGINT in signals)
        self._close()

    def tick(self, *, interrupted: bool = False) -> None:
        """Look once: listen, judge, tell, and end what has failed."""
        with self._changed:
            if self._stopping:
                return
            if interrupted and self._interrupted_at is None:  # pressing it again must not buy time
                self._interrupted_at = self._look()[1]
            own, now = self._look()
            for beat in self._post.receive():
                self._roll.hear(beat, now)
                if beat.failure is not None:
                    self._adopt(beat.failure, now)
            if self._state is State.ALIVE:
                failure = self._interruption(own, now) or self._roll.judge(own, now)
                if failure is not None:
                    self._adopt(failure, now)
            self._send(own)
            news = self._failure is not None and self._sentence is None and now > self._failed_at
            if news:
                self._settle()
            self._changed.notify_all()
        if news and self._on_failure is not None and self._noticed_at is None and self._sentence is not None:
            with suppress(Exception):
                self._on_failure(self._sentence)
        self._end(now)

    def _look(self) -> tuple[Beat, float]:
        """This rank's own heartbeat, and the time."""
        now, passed = self._attention.look()
        if passed > self._limits.limit_s:
            self._roll.was_away(passed, now)
        progress = self._stamps.progress()
        if progress != self._progress:
            self._progress, self._moved_at = progress, now
        cycle, stage = self._stamps.read()
        self._sequence += 1
        own = Beat(
            rank=self._me.rank,
            sequence=self._sequence,
            cycle=cycle,
            stage=stage,
            active=self._stamps.active,
            still_s=now - self._moved_at,
            state=self._says(),
            failure=self._failure,
        )
        return own, now

    def _says(self) -> State:
        return State.INTERRUPTED if self._state is State.ALIVE and self._interrupted_at is not None else self._state

    def _interruption(self, own: Beat, now: float) -> Failure | None:
        """Ctrl-C reaches a main thread that runs Python; one that does not move is stuck below it."""
        if not own.active or self._moved_at > (self._interrupted_at or 0.0):
            self._interrupted_at = None
        if self._interrupted_at is None:
            return None
        waited_s = now - self._interrupted_at
        return self._roll.interrupted(own, self._limits.interrupt_s) if waited_s >= self._limits.interrupt_s else None

    def _adopt(self, failure: Failure, now: float) -> None:
        """Believe in a failure; until the next look it may give way to a truer one that another rank found."""
        if self._sentence is not None:
            return
        if self._failure is None:
            self._failed_at = now
        self._failure = failure if self._failure is None else truer(self._failure, failure)
        self._state = State.FAILED

    def _settle(self) -> None:
        """From here the failure stands; write what was decided last."""
        assert self._failure is not None, "settled without a failure"
        if self._sentence is not None:
            return
        self._ending = Ending(self._failure, self._me.rank, self._limits)
        said = self._failure.sentence
        path = write_ring(self._ring, self._ring_path, rank=self._me.rank, reason=said, within_s=_WRITE_S)
        tail = f"last decisions: {path}" if path else f"the last decisions could not be written to {self._ring_path}"
        self._sentence = f"{said}; {tail}"

    def _end(self, now: float) -> None:
        with self._changed:
            if self._ending is None:
                return
            since_s = now - self._failed_at
            self._accounted = self._ending.round_up(self._roll.entries.values(), since_s)
            self._changed.notify_all()
            noticed_s = None if self._noticed_at is None else now - self._noticed_at
            if self._ending.is_overdue(since_s, noticed_s=noticed_s, accounted=self._accounted):
                if noticed_s is None:
                    print_line(f"slipstream: {self._sentence}")
                self._stopping = True
                self._end_process(self._ending.exit_code)
            elif self._ending.is_over(since_s) and self._me.rank == 0:
                self._stopping = True

    # ------------------------------------------------------------------ both threads'

    def _notice(self) -> None:
        """The main thread knows: it will end the process in its own way."""
        if self._noticed_at is None:
            self._noticed_at = self._look()[1]

    def _announce(self, find: Callable[[Beat, float], Failure], wait_s: float = 0.0) -> GroupError:
        """Tell the others, wait until those near have heard, and word the error.

        Unless another cause is known, or becomes known meanwhile, it is what `find` says of this rank.
        """
        with self._changed:
            self._notice()
            self._changed.wait_for(lambda: self._sentence is not None, wait_s)
            if self._failure is None:
                own, now = self._look()
                self._adopt(find(own, now), now)
            self._tell()
            self._settle()
            self._changed.notify_all()
            self._bell.ring()
            if self._thread.is_alive():
                self._changed.wait_for(lambda: self._accounted, _HOLD_S)
            return GroupError(self._sentence)

    def _close(self) -> None:
        self._post.close()
        self._bell.close()

    def _tell(self) -> None:
        for _ in range(_REPEATS):
            self._send(self._look()[0])

    def _send(self, own: Beat) -> None:
        self._post.send(replace(own, state=self._says(), failure=self._failure))
