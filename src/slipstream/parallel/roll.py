"""The roll call: what is known of every other rank, and whether the group has failed. No thread, no socket, no clock.

Times are the watchdog's attention, in seconds: time in which it did not run is not counted against the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.parallel.heartbeat import Beat, Failure, Kind, Peer, State
from slipstream.parallel.page import open_page
from slipstream.parallel.process import is_gone, start_ticks
from slipstream.parallel.ring import name
from slipstream.parallel.stamps import Stage, position

ENDS = "; the group ends. Restart it"
_REASON_BYTES = 300
MEET_LIMITS = 4  # times limit_s, for groups to come up
_AWAY_PATIENCE_S = 2.0  # for a rank that was stopped for longer than the limit: its peers answer now, or never


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long is too long, in seconds. Every rank is given the same."""

    interval_s: float = 0.2  # between heartbeats
    limit_s: float = 30.0  # without a heartbeat, or at work without progress
    load_limit_s: float = 1800.0  # without progress while loading
    grace_s: float = 2.0  # from a failure until a rank whose main thread has not noticed is ended; rank 0 has 1 s more
    interrupt_s: float = 3.0  # from Ctrl-C until a main thread that does not move is ended

    def of(self, stage: Stage) -> float:
        """How long a rank may stay in a stage without progress."""
        if stage is Stage.MEET:  # NCCL connects, and all-reduces are timed
            return MEET_LIMITS * self.limit_s
        return self.load_limit_s if stage is Stage.LOAD else self.limit_s


@dataclass(slots=True, kw_only=True)
class Entry:
    """What this rank knows of another."""

    peer: Peer
    is_local: bool  # a process of this machine that can be seen and ended from here
    heard_at: float
    beat: Beat | None = None
    page: memoryview | None = None  # its stamps, if it is local: newer than its last heartbeat

    @property
    def has_left(self) -> bool:
        return self.beat is not None and self.beat.state is State.LEAVING

    @property
    def knows(self) -> bool:
        """Whether it has said that it knows of the failure."""
        return self.beat is not None and self.beat.state is State.FAILED

    def where(self) -> str:
        """The last that is known of its place, in words."""
        if self.page is not None:
            return in_words(*position(self.page))
        return where(self.beat) if self.beat else "before its first heartbeat"

    def is_gone(self) -> bool:
        return self.is_local and is_gone(self.peer.pid, self.peer.started)


class Roll:
    """One entry for every other rank."""

    def __init__(self, me: Peer, others: Sequence[Peer], limits: Limits, now: float) -> None:
        self._me, self._limits = me, limits
        self._away_s = 0.0
        self._back_at = now
        self.entries = {peer.rank: _entry(peer, me, now) for peer in others}

    def hear(self, beat: Beat, now: float) -> None:
        """Take down a heartbeat; one that was overtaken on its way is ignored."""
        entry = self.entries.get(beat.rank)
        if entry is None or (entry.beat is not None and beat.sequence <= entry.beat.sequence):
            return
        entry.beat, entry.heard_at = beat, now

    def was_away(self, seconds: float, now: float) -> None:
        """This rank was stopped: what it heard until now is old, and from now it expects its peers to answer soon."""
        self._away_s, self._back_at = seconds, now
        for entry in self.entries.values():
            entry.heard_at = now

    def unheard(self) -> list[Peer]:
        """The ranks that have never sent a heartbeat."""
        return [entry.peer for entry in self.entries.values() if entry.beat is None]

    def local(self) -> list[Entry]:
        """The ranks that run on this machine."""
        return [entry for entry in self.entries.values() if entry.is_local]

    def judge(self, own: Beat, now: float) -> Failure | None:
        """Find out whether the group has failed, and whose failure it is."""
        failure = self._lost(own, now)
        if failure is not None and self._away_s:
            sentence = (
                f"{self._me} was stopped for {self._away_s:.0f} s {where(own)}, and the other ranks have gone on"
                f" without it{ENDS}"
            )
            return Failure(kind=Kind.SILENT, origin=own.rank, reporter=own.rank, sentence=sentence)
        if failure is None and self._away_s and now - self._back_at > 2 * _AWAY_PATIENCE_S:
            self._away_s = 0.0  # they were stopped as well, and go on as well
        return failure or self._stuck(own)

    def silent(self, longer_than_s: float, own: Beat, now: float) -> Failure | None:
        """Blame the rank that has been silent for the longest, if for longer than this."""
        entries = [entry for entry in self.entries.values() if entry.beat is not None and not entry.has_left]
        oldest = min(entries, key=lambda entry: entry.heard_at, default=None)
        if oldest is None or now - oldest.heard_at <= longer_than_s:
            return None
        return self._failure(Kind.SILENT, oldest, f"stopped answering for {now - oldest.heard_at:.3g} s", own)

    def raised(self, own: Beat, reason: str) -> Failure:
        """This rank's own exception."""
        short = " ".join(reason.split()).encode()[:_REASON_BYTES].decode(errors="ignore")
        sentence = f"{self._me} failed {where(own)}: {short}{ENDS}"
        return Failure(kind=Kind.RAISED, origin=own.rank, reporter=own.rank, sentence=sentence)

    def interrupted(self, own: Beat, still_s: float = 0.0) -> Failure:
        """Ctrl-C. still_s: for how long this rank's main thread did not hear it."""
        still = f" and did not move for {still_s:g} s" if still_s else ""
        sentence = f"{self._me} was interrupted{still} {where(own)}; the group ends"
        return Failure(kind=Kind.INTERRUPTED, origin=own.rank, reporter=own.rank, sentence=sentence)

    def _lost(self, own: Beat, now: float) -> Failure | None:
        for entry in self.entries.values():
            if not entry.has_left and entry.is_gone():
                return self._failure(Kind.GONE, entry, "has ended", own)
        limit_s = _AWAY_PATIENCE_S if self._away_s else self._limits.limit_s
        zero = self.entries.get(0)
        if zero is not None and zero.has_left and now - zero.heard_at > limit_s:
            return self._failure(Kind.GONE, zero, "has left without ending the group", own)
        return self.silent(limit_s, own, now)

    def _stuck(self, own: Beat) -> Failure | None:
        if not own.active or own.still_s <= self._limits.of(own.stage):
            return None
        beats = [own, *(entry.beat for entry in self.entries.values() if entry.beat and not entry.has_left)]
        if any(beat.state is State.INTERRUPTED for beat in beats):
            return None  # that is why the group ends, and soon; who holds it up no longer matters
        last = min(beats, key=_place)
        who = self._me if last is own else self.entries[last.rank].peer
        sentence = f"{who} made no progress for {self._limits.of(own.stage):g} s {where(last)}{ENDS}"
        return Failure(kind=Kind.STUCK, origin=last.rank, reporter=own.rank, sentence=sentence)

    def _failure(self, kind: Kind, entry: Entry, what: str, own: Beat) -> Failure:
        seen = entry.where()
        mine = f"rank {own.rank} is {where(own)}"
        sentence = f"{entry.peer} {what} {seen} ({mine}){ENDS}"
        return Failure(kind=kind, origin=entry.peer.rank, reporter=own.rank, sentence=sentence)


def where(beat: Beat) -> str:
    """A rank's place in words."""
    return in_words(beat.cycle, beat.stage)


def in_words(cycle: int, stage: Stage) -> str:
    """A place in words."""
    return f"at cycle {cycle}, stage {name(stage)}"


def truer(one: Failure, other: Failure) -> Failure:
    """Of what two ranks found out at once, the one that all will report."""
    if one.origin == other.origin:  # how it failed says more than that it is gone
        return min(one, other, key=lambda each: (each.kind is not Kind.RAISED, each.kind, each.reporter))
    return min(one, other, key=lambda each: (each.kind, each.reporter))


def _place(beat: Beat) -> tuple[int, int, float, int]:
    """Sorts the rank that fell behind first: collectives hold the others where it should be."""
    stage = beat.stage if beat.active else len(Stage)  # idle: done with its cycle
    return beat.cycle, stage, -beat.still_s, beat.rank


def _entry(peer: Peer, me: Peer, now: float) -> Entry:
    is_local = _is_local(peer, me)
    page = open_page(peer.pid, peer.page_fd) if is_local else None
    return Entry(peer=peer, is_local=is_local, heard_at=now, page=page)


def _is_local(peer: Peer, me: Peer) -> bool:
    """A container of the same host name has other pids: the process must be the one that introduced itself."""
    return peer.host_name == me.host_name and start_ticks(peer.pid) == peer.started
