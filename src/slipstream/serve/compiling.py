"""Submissions whose grammar is still being compiled: they stand in line when it is, and no cycle waits for it."""

from concurrent.futures import Future
from typing import Any

from slipstream.engine.executor import Ranks
from slipstream.flow.orders import StartGrammar
from slipstream.serve.messages import AnswerId, Submit
from slipstream.serve.pending import Requests


class Compiling:
    """In the order in which they came."""

    def __init__(self, requests: Requests, ranks: Ranks) -> None:
        """ranks: each compiles a grammar for itself, all at the same time."""
        self._requests, self._ranks = requests, ranks
        self._waiting: list[tuple[Submit, Future[Any]]] = []

    @property
    def busy(self) -> bool:
        """Whether anything is waited for."""
        return bool(self._waiting)

    def takes(self, message: Submit) -> bool:
        """Whether a submission has to wait here; if so, its grammar is being compiled from now on.

        Raises:
            ValueError: the model cannot follow any.
        """
        grammar = message.params.grammar
        if grammar is None:
            return False
        compiled = self._requests.grammars.start(grammar)
        if compiled.done():
            return False
        self._ranks.order(StartGrammar(grammar=grammar))
        self._waiting.append((message, compiled))
        return True

    def finished(self) -> list[Submit]:
        """Those that need not wait any longer; whether their grammar means anything is seen when it is opened."""
        done = [message for message, compiled in self._waiting if compiled.done()]
        self._waiting = [each for each in self._waiting if each[0] not in done]
        return done

    def drop(self, answer: AnswerId) -> bool:
        """Forget the submission that this answer belongs to; whether it was here."""
        left = [each for each in self._waiting if not each[0].answer <= answer < each[0].answer + each[0].params.n]
        dropped, self._waiting = len(left) < len(self._waiting), left
        return dropped
