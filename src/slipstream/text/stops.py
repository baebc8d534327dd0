"""Find stop strings in a growing answer, and hold back from a stream what may become one.

|<------ released ------>|<- held back: may begin a stop ->|<- bytes of half a character ->|
|<--------------- settled: seen by the search ------------>|
|<--------------------------------------- text ------------------------------------------->|
"""

import copy
from collections.abc import Collection, Sequence

from slipstream.text.detokenize import Detokenizer
from slipstream.text.tokenizer import Tokenizer


class StopMatcher:
    """The text of one answer, which ends before the first stop string in it, or after it with `include_stop`.

    A stop string that is a special token's text works too, though that text is hidden. A stop that is whole within the
    first `min_tokens` tokens is no stop.

    Raises:
        ValueError: a stop string is empty.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_strings: Sequence[str] = (),
        *,
        stop_ids: Collection[int] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        if "" in stop_strings:
            raise ValueError("a stop string is empty; leave it out")
        self.stopped = False
        self._stops = tuple(stop_strings)
        self._stop_ids = frozenset(stop_ids) | _special(tokenizer, stop_strings)
        self._include_stop = include_stop
        self._num_exempt = min_tokens
        self._detokenizer = Detokenizer(tokenizer)
        self._longest = max(map(len, self._stops), default=0)
        self._settled: list[str] = []
        self._num_settled = 0
        self._tail = ""  # the end of what is settled, as far as a stop string may reach back
        self._taken = 0

    def push(self, token_id: int) -> bool:
        """Take the next token; true when it completes a stop."""
        if self.stopped:
            return True
        self._num_exempt -= 1
        if self._num_exempt > 0:
            self._settle(self._detokenizer.push([token_id]))
            return False
        if token_id in self._stop_ids:
            self._settle(self._detokenizer.push([token_id]) if self._include_stop else "")
            self._settle(self._detokenizer.finish())
            self.stopped = True
            return True
        return self._search(self._detokenizer.push([token_id]))

    @property
    def text(self) -> str:
        """The whole answer so far, as decoding its tokens gives it, up to the stop."""
        return self._joined() + ("" if self.stopped else self._detokenizer.copy().finish())

    @property
    def num_settled(self) -> int:
        """Characters that are certain, those held back too; fewer than before where a stop string was cut away."""
        return self._num_settled

    @property
    def visible_text(self) -> str:
        """What may be shown already: it will not change, nor turn out to be part of a stop string."""
        return self._joined()[: self._num_settled - self._num_held()]

    def take(self) -> str:
        """Give what has become visible since the last call, at the cost of that alone."""
        end = self._num_settled - self._num_held()
        behind = self._num_settled - self._taken
        recent: list[str] = []
        for piece in reversed(self._settled):
            if behind <= 0:
                break
            recent.append(piece[-behind:])
            behind -= len(piece)
        fresh = "".join(reversed(recent))[: max(end - self._taken, 0)]
        self._taken += len(fresh)
        return fresh

    def finish(self) -> str:
        """Give what has not been taken, now that no token will follow."""
        if not self.stopped:
            self._settle(self._detokenizer.finish())
            self.stopped = True
        return self.take()

    def copy(self) -> "StopMatcher":
        """Give one that goes on from here on its own."""
        found = copy.copy(self)
        found._detokenizer, found._settled = self._detokenizer.copy(), [*self._settled]
        return found

    def _search(self, fresh: str) -> bool:
        """Look for a stop string that ends in the fresh text: the first to end, and of those the longest."""
        window = self._tail + fresh
        ends = [(start + len(stop), start) for stop in self._stops if (start := self._first(stop, window)) >= 0]
        self._settle(fresh)
        if not ends:
            return False
        end, start = min(ends)
        self._cut(len(window) - (end if self._include_stop else start))
        self.stopped = True
        return True

    def _first(self, stop: str, window: str) -> int:
        """Say where in the window a stop string begins that was not whole before; -1 for nowhere."""
        return window.find(stop, max(len(self._tail) - len(stop) + 1, 0))

    def _settle(self, fresh: str) -> None:
        """Add text that will not change."""
        if fresh:
            self._settled.append(fresh)
            self._num_settled += len(fresh)
        if self._longest > 1:
            self._tail = (self._tail + fresh)[-(self._longest - 1) :]

    def _cut(self, num_chars: int) -> None:
        """Take text back from the end."""
        self._settled = [self._joined()[: self._num_settled - num_chars]]
        self._num_settled -= num_chars

    def _joined(self) -> str:
        self._settled = ["".join(self._settled)]
        return self._settled[0]

    def _num_held(self) -> int:
        """Count the settled characters that may be the beginning of a stop string."""
        if self.stopped:
            return 0
        for num in range(len(self._tail), 0, -1):
            if any(stop.startswith(self._tail[-num:]) for stop in self._stops):
                return num
        return 0


def _special(tokenizer: Tokenizer, stop_strings: Sequence[str]) -> frozenset[int]:
    """Give the ids of the special tokens among stop strings."""
    return frozenset(index for stop in stop_strings if (index := tokenizer.token_to_id(stop)) in tokenizer.special_ids)
