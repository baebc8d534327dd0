"""All ranks live in other processes: the host loop speaks to rank 0 over one authenticated socket.

Rank 0 serves it with a RankExecutor of its own. A question has one result; bytes loaded may come before it, and word
that the group has ended may come at any time.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from slipstream.config.speculation import Speculation
from slipstream.engine.executor import ANSWERED, Ordering, RankExecutor
from slipstream.engine.interrupt import interrupts_wait
from slipstream.flow.relay import Ask, Kind, Question, Reply
from slipstream.parallel.channel import Wire
from slipstream.parallel.roll import ENDS
from slipstream.parallel.watchdog import GroupError

POLL_S = 0.5  # between two looks at whether the ranks are still there
PATIENCE_S = 5.0  # for rank 0 to say what it knows of a rank that is not
SEND_S = 1.0  # the watchdog's thread must not wait for long

_ANSWERS: Mapping[Question, Callable[[RankExecutor, Any], Any]] = {
    Question.ORDER: lambda executor, order: executor.order_all(order),
    Question.CHECK: lambda executor, shape: executor.check(shape),
    Question.HAS_DRAFT: lambda executor, _: executor.has_draft,
}


class TakeDown(Protocol):
    """Ends the ranks; in peace they leave by themselves."""

    def __call__(self, *, in_peace: bool) -> None: ...


class RemoteExecutor(Ordering):
    """The host loop's end."""

    def __init__(
        self,
        connection: Wire,
        name: str,
        *,
        lost: Callable[[], str | None],
        end: TakeDown,
        on_tensor: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        """name: rank 0 in words. lost: says in a sentence which rank is gone, or None. end: takes the ranks down."""
        self._connection, self._name = connection, name
        self._lost, self._end, self._on_tensor = lost, end, on_tensor
        self._over: str | None = None  # why nothing can be asked any more

    def wait_until_up(self) -> None:
        """Wait for rank 0's first word.

        Raises:
            ValueError: a rank never came; GroupError: one is gone.
        """
        self._result()

    @property
    def ended(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._over is not None

    @property
    def has_draft(self) -> bool:
        """Whether a draft was placed."""
        return self._ask(Question.HAS_DRAFT)

    def check(self, shape: Speculation) -> None:
        """Refuse a cycle that the draft cannot grow.

        Raises:
            ValueError: no draft, or too few draft tokens to choose from.
        """
        self._ask(Question.CHECK, shape)

    def order_all(self, order: object) -> Sequence[Any]:
        """The same; results of all ranks where the order is one that they answer, else rank 0's alone."""
        if isinstance(order, ANSWERED):
            return self._ask(Question.ORDER, order)
        with interrupts_wait():
            return self._ask(Question.ORDER, order)

    def close(self) -> None:
        """End the ranks in peace; a second call does nothing."""
        self._finish("this engine was closed; make another", in_peace=True)

    def _ask(self, question: Question, value: object = None) -> Any:
        if self._over is not None:
            raise GroupError(self._over)
        with suppress(OSError):  # rank 0 hung up: what it said before is still to be read
            self._connection.send(Ask(question=question, value=value))
        return self._result()

    def _result(self) -> Any:
        try:
            reply = self._hear()
        except BaseException:
            self._finish("this engine was interrupted; make another", in_peace=False)
            raise
        match reply.kind:
            case Kind.REFUSED:
                raise ValueError(reply.value)
            case Kind.BROKEN:
                raise RuntimeError(reply.value)
            case Kind.ENDED:
                self._finish(reply.value, in_peace=False)
                raise GroupError(reply.value)
        return reply.value

    def _hear(self) -> Reply:
        """Wait for a result, as long as every rank is there."""
        while True:
            try:
                if not self._connection.poll(POLL_S):
                    sentence = self._lost()
                    if sentence is None or self._connection.poll(PATIENCE_S):
                        continue
                    return Reply(kind=Kind.ENDED, value=sentence)
                reply = self._connection.recv()
            except (EOFError, OSError):
                return Reply(kind=Kind.ENDED, value=f"{self._name} has ended{ENDS}")
            if reply.kind is not Kind.LOADED:
                return reply
            self._on_tensor(reply.value)

    def _finish(self, why: str, *, in_peace: bool) -> None:
        if self._over is None:
            self._over = why
            with suppress(OSError):
                self._connection.close()
            self._end(in_peace=in_peace)


class Line:
    """Rank 0's end: its main thread and its watchdog speak."""

    def __init__(self, connection: Wire) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def hear(self) -> Ask | None:
        """Wait for a question; None when the host loop hung up or is gone."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            return None

    def say(self, kind: Kind, value: object = None) -> None:
        """Reply; to one who is gone it is not said."""
        if self._lock.acquire(timeout=SEND_S):
            try:
                with suppress(OSError):
                    self._connection.send(Reply(kind=kind, value=value))
            finally:
                self._lock.release()


def serve_driver(line: Line, open_executor: Callable[[Line], RankExecutor]) -> None:
    """Be rank 0 of a host loop elsewhere: come up, then do what it asks until it hangs up or the group has ended."""
    try:
        executor = open_executor(line)
    except (ValueError, GroupError) as error:
        line.say(Kind.REFUSED if isinstance(error, ValueError) else Kind.ENDED, str(error))
        return
    line.say(Kind.RESULT)
    serve_orders(line, executor)


def serve_orders(line: Line, executor: RankExecutor) -> None:
    """Answer questions until there are no more."""
    while (ask := line.hear()) is not None:
        reply = _reply(executor, ask)
        line.say(reply.kind, reply.value)
        if reply.kind is Kind.ENDED:
            return
    executor.close()


def _reply(executor: RankExecutor, ask: Ask) -> Reply:
    try:
        return Reply(kind=Kind.RESULT, value=_ANSWERS[ask.question](executor, ask.value))
    except ValueError as error:
        return Reply(kind=Kind.REFUSED, value=str(error))
    except GroupError as error:
        return Reply(kind=Kind.ENDED, value=str(error))
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return Reply(kind=Kind.BROKEN, value=f"rank 0: {type(error).__name__}: {error}")
