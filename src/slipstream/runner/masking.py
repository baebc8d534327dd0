"""Masks of a batch's grammars, made by threads while the forward runs whose scores they change.

Shape letters: S requests, N rows of the tree, K forced tokens.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from slipstream.attention.tree import TokenTree
from slipstream.draft.forced import NOT_FORCED
from slipstream.text.grammar import Automaton, Grammars
from slipstream.verify.grammar import Masks, joined, walk

MOST_THREADS = 8

MasksToCome = Callable[[], Masks | None]  # waits for them; asked for when the scores are there


def no_masks() -> None:
    """What there is to come where no request has a grammar."""


class MaskMaker:
    """A rank's grammars, and threads that walk trees with them."""

    def __init__(self, open_grammars: Callable[[], Grammars]) -> None:
        """open_grammars: asked once, when the first request with a grammar comes."""
        self._open, self._grammars = open_grammars, None
        self._threads: ThreadPoolExecutor | None = None

    @property
    def grammars(self) -> Grammars:
        """Of this model's tokenizer.

        Raises:
            ValueError: the tokenizer cannot have any.
        """
        if self._grammars is None:
            self._grammars = self._open()
        return self._grammars

    def start(self, tree: TokenTree, automata: Sequence[Automaton | None], device: torch.device) -> MasksToCome:
        """Begin with the masks of a batch's trees; nobody may move the automata until they were asked for."""
        places = [place for place, each in enumerate(automata) if each is not None]
        if not places:
            return no_masks
        if self._threads is None:
            self._threads = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "masks")
        tokens = tree.tokens_SN[places].tolist()  # sync: grammars walk the tree on the host
        parents = tree.parents_SN[places].tolist()  # sync: as above
        num_words = self.grammars.num_words
        walks: list[Future[dict[int, object]]] = []
        for row, place in enumerate(places):
            automaton = automata[place]
            assert automaton is not None, "places are of those with a grammar"
            walks.append(self._threads.submit(walk, automaton, tokens[row], parents[row], num_words=num_words))
        found = list(zip(places, walks, strict=True))
        return lambda: joined([(place, each.result()) for place, each in found], tree.num_rows).to(device)


def forced_tokens(automata: Sequence[Automaton | None], steps: int) -> list[list[int]]:
    """For each request the tokens that its grammar forces after its root, `steps` at most."""
    return [[] if each is None or not steps else each.forced()[:steps] for each in automata]


def padded(forced: Sequence[Sequence[int]], steps: int, device: torch.device) -> Tensor | None:
    """The same [S, K], NOT_FORCED beyond; None where nothing is forced."""
    if not any(forced):
        return None
    return torch.tensor([[*tokens, *[NOT_FORCED] * (steps - len(tokens))] for tokens in forced], device=device)
