"""Turn token ids into text as they come, never half a character.

context     ids whose text is out: the decoder needs them to know that it is not at the beginning
pending     ids whose text is not: they end inside a character, or show nothing
"""

import copy
from collections.abc import Sequence

from tokenizers.decoders import DecodeStream

from slipstream.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"  # what bytes that are no character, or not yet one, decode to
MAX_PENDING = 8  # a character has four bytes, so more ids than that hold something that never becomes one
MAX_CHARACTER_IDS = 4


class Detokenizer:
    """Decode a growing list of ids; all that `push` and `finish` give is what decoding the whole list gives."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._context: list[int] = []
        self._pending: list[int] = []
        self._stream = DecodeStream()

    def push(self, ids: Sequence[int]) -> str:
        """Take ids and give the text that has become whole."""
        return "".join([self._step(index) for index in ids if index not in self._hidden])

    def finish(self) -> str:
        """Give the rest: bytes that no further id will complete."""
        before = self._decode(self._context)
        whole = self._decode([*self._context, *self._pending])
        rest = whole[len(before) :] if whole.startswith(before) else self._decode(self._pending)
        self._restart([])
        return rest

    def copy(self) -> "Detokenizer":
        """Give one that goes on from here on its own."""
        found = copy.copy(self)
        found._context, found._pending = [*self._context], [*self._pending]
        found._stream = copy.copy(self._stream)
        return found

    def _step(self, index: int) -> str:
        self._pending.append(index)
        try:
            text = self._stream.step(self._tokenizer.raw, index)
        except Exception:  # tokenizers raises nothing narrower: the new ids changed the text that is out already
            return self._release(len(self._pending))
        if text is not None:
            self._context, self._pending = self._pending, []
            return text
        return self._settle() if len(self._pending) > MAX_PENDING else ""

    def _settle(self) -> str:
        """Release what no further id can change, so that a long run of broken bytes costs no more than text does."""
        whole = self._decode(self._pending)
        for num_kept in range(1, MAX_CHARACTER_IDS + 1):
            cut = len(self._pending) - num_kept
            if self._decode(self._pending[:cut]) + self._decode(self._pending[cut:]) == whole:
                return self._release(cut)
        return ""

    def _release(self, cut: int) -> str:
        """Give the text of the first pending ids by themselves, and begin a stream after them with the others."""
        released, kept = self._pending[:cut], self._pending[cut:]
        text = self._decode(released)
        # A stream given a context that ends in broken bytes would write it out again.
        self._restart([] if text.endswith(REPLACEMENT) else released if text else self._context)
        return text + "".join([self._step(index) for index in kept])

    def _restart(self, context: list[int]) -> None:
        self._context, self._pending = context, []
        self._stream = DecodeStream(context)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
