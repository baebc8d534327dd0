"""Whose the text of an answer is: the draft's, where a drafted token was accepted, or the target's own.

A character belongs to the token that made it whole, also where a stop string held it back for a while.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A run of characters with one origin."""

    text: str
    drafted: bool


class Origins:
    """Remembers where the characters of an answer came from, from when they are certain until they are shown."""

    def __init__(self) -> None:
        self._runs: deque[tuple[int, bool]] = deque()  # up to which character, and whether drafted
        self._num_marked = self._num_taken = 0
        self._last = False

    def mark(self, num_chars: int, *, drafted: bool) -> None:
        """A token came, and so many characters are certain now."""
        self._last = drafted
        if num_chars > self._num_marked:
            self._runs.append((num_chars, drafted))
            self._num_marked = num_chars

    def take(self, text: str) -> list[Part]:
        """Part the characters that are shown next. What no token made whole, at the end, is the last one's."""
        parts: list[Part] = []
        while text:
            end, drafted = self._runs[0] if self._runs else (self._num_taken + len(text), self._last)
            shown, text = text[: end - self._num_taken], text[end - self._num_taken :]
            self._num_taken += len(shown)
            if self._runs and self._num_taken == end:
                self._runs.popleft()
            if parts and parts[-1].drafted == drafted:
                shown = parts.pop().text + shown
            parts.append(Part(text=shown, drafted=drafted))
        return parts
