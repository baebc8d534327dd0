"""How a failed group ends: every rank tells the others, ends by itself, and ends those near it that cannot.

Killing everybody at once would be shorter, but then nobody could say why, and rank 0 is the user's own process. So a
rank that answers gets the time to report; one that does not is killed. Times are seconds since the failure.
"""

from collections.abc import Iterable

from slipstream.parallel import process
from slipstream.parallel.heartbeat import Failure, Kind
from slipstream.parallel.roll import Entry, Limits

ANSWER_S = 1.0  # for a rank to say that it knows
_LAST_S = 2.0  # after its grace, for a rank that knows, and is still there
_EXIT_S = 5.0  # for a rank other than 0 to exit after its main thread has noticed; then it hangs in its exit
_RANK_ZERO_S = 1.0  # its grace is longer: the others' closing sockets are what its main thread notices


class Ending:
    """What a rank still has to do after a failure."""

    def __init__(self, failure: Failure, rank: int, limits: Limits) -> None:
        self._failure, self._rank = failure, rank
        self._grace_s = limits.grace_s

    @property
    def exit_code(self) -> int:
        """What the process ends with."""
        return 130 if self._interrupted_here else 1

    def round_up(self, entries: Iterable[Entry], since_s: float) -> bool:
        """Kill what must be killed; return whether rank 0 and all ranks of this machine know or have ended."""
        accounted = True
        for entry in entries:
            if entry.is_local and self._must_die(entry, since_s):
                process.kill(entry.peer.pid, entry.peer.started)
            elif (entry.is_local or entry.peer.rank == 0) and not self._is_accounted(entry):
                accounted = False
        return accounted

    def is_overdue(self, since_s: float, *, noticed_s: float | None, accounted: bool) -> bool:
        """Whether the process must be ended now. noticed_s: since when the main thread knows, None if it does not."""
        if noticed_s is not None:
            return self._rank != 0 and noticed_s >= _EXIT_S
        if self._interrupted_here:  # the main thread had its time before
            return accounted or since_s >= self._grace_s
        return since_s >= self._grace_s + (_RANK_ZERO_S if self._rank == 0 else 0)

    def is_over(self, since_s: float) -> bool:
        """Whether every rank that could still be helped or ended has been."""
        return since_s >= self._grace_s + _RANK_ZERO_S + 2 * _LAST_S

    @property
    def _interrupted_here(self) -> bool:
        return self._failure.kind is Kind.INTERRUPTED and self._failure.origin == self._rank

    def _is_origin(self, entry: Entry) -> bool:
        return entry.peer.rank == self._failure.origin

    def _is_accounted(self, entry: Entry) -> bool:
        lost = self._is_origin(entry) and self._failure.kind in (Kind.GONE, Kind.SILENT)
        return lost or entry.knows or entry.has_left or entry.is_gone()

    def _must_die(self, entry: Entry, since_s: float) -> bool:
        if entry.has_left or entry.is_gone():
            return False
        if self._is_origin(entry) and self._failure.kind is Kind.SILENT:
            return True
        if entry.knows:
            return entry.peer.rank != 0 and since_s >= self._grace_s + _LAST_S
        return since_s >= (self._grace_s if entry.peer.rank == 0 else ANSWER_S)
