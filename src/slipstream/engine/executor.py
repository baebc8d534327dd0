"""Where the engine's orders go: to this process's rank, and to the others of its group.

Rank 0 owns the host loop. It sends each order to every other rank, then carries it out itself; in a cycle the ranks
meet in the collectives, so no answer is waited for. Orders about models and memory are answered by every rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from slipstream.config.speculation import Speculation
from slipstream.engine.interrupt import interrupts_wait
from slipstream.flow.batch import Batch
from slipstream.flow.orders import LoadTarget, MakePools, PlaceDraft, RankShare, Release, SetDelay, TellShare
from slipstream.flow.output import Run
from slipstream.flow.prefill import Prefill
from slipstream.flow.request import RequestId
from slipstream.parallel.launch import Membership
from slipstream.parallel.watchdog import GroupError
from slipstream.parallel.world import close_world
from slipstream.runner.rank import Rank
from slipstream.runner.worker import Worker

ANSWERED = (LoadTarget, PlaceDraft, MakePools, TellShare, SetDelay)


class Executor(Protocol):
    """What the engine needs of the device side."""

    @property
    def has_draft(self) -> bool:
        """Whether there is anything to speculate with."""
        ...

    def check(self, shape: Speculation) -> None:
        """Refuse a cycle that the draft cannot grow (ValueError)."""
        ...

    def prefill(self, work: Prefill) -> tuple[Run | None, ...]:
        """Run chunks of prompts; for each the answer's first token, or None where its context goes on.

        Where the prompt's log-probabilities are wanted, a chunk that others follow gives a run without tokens.
        """
        ...

    def step(self, batch: Batch) -> tuple[Run, ...]:
        """Run one cycle."""
        ...

    def release(self, request: RequestId, *, complete: int = 0) -> None:
        """Forget a request; complete: so many of its first entries are to be fit for others."""
        ...


class Ranks(Executor, Protocol):
    """An executor with models to load and place: of this process's rank, or of ranks that all live elsewhere."""

    def shares(self) -> tuple[RankShare, ...]:
        """What each rank holds."""
        ...

    def order(self, order: object) -> Any:
        """Have an order carried out on all ranks; rank 0's result. ValueError, GroupError: as in RankExecutor."""
        ...

    def order_all(self, order: object) -> Sequence[Any]:
        """The same; results of all ranks where the order is one that they answer, else rank 0's alone."""
        ...

    def close(self) -> None:
        """End the group in peace; a second call does nothing."""
        ...


class Ordering(ABC):
    """What an executor does by ordering it of its ranks, wherever they are."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether nothing can be ordered any more."""

    @abstractmethod
    def order_all(self, order: object) -> Sequence[Any]:
        """Have an order carried out on all ranks; results of all where they answer it, else rank 0's alone."""

    def order(self, order: object) -> Any:
        """Have an order carried out on all ranks; rank 0's result.

        Raises:
            ValueError: an order about models or memory that some rank cannot meet.
            GroupError: a rank died, hung or diverged; the group has ended.
        """
        return self.order_all(order)[0]

    def prefill(self, work: Prefill) -> tuple[Run | None, ...]:
        """Run chunks of prompts on every rank."""
        return self.order(work)

    def step(self, batch: Batch) -> tuple[Run, ...]:
        """Run one cycle on every rank."""
        return self.order(batch)

    def release(self, request: RequestId, *, complete: int = 0) -> None:
        """Forget a request on every rank; a group that has ended has forgotten it."""
        if not self.ended:
            self.order(Release(request=request, complete=complete))

    def shares(self) -> tuple[RankShare, ...]:
        """What each rank holds."""
        return tuple(self.order_all(TellShare()))


class RankExecutor(Ordering):
    """This process is rank 0, alone or with a group behind it."""

    def __init__(self, rank: Rank, membership: Membership | None = None) -> None:
        self.rank, self.membership = rank, membership
        self._closed = False

    @property
    def has_draft(self) -> bool:
        """Whether a draft was placed; rank 0 always holds a share of it."""
        return self.worker.has_draft

    @property
    def ended(self) -> bool:
        """Whether the group was closed or lost."""
        return self._closed

    @property
    def worker(self) -> Worker:
        """This rank's worker."""
        return self.rank.worker

    def check(self, shape: Speculation) -> None:
        """Refuse a cycle that the draft cannot grow.

        Raises:
            ValueError: no draft, or too few draft tokens to choose from.
        """
        self.worker.check(shape)

    def order_all(self, order: object) -> Sequence[Any]:
        """The same; results of all ranks where the order is one that they answer, else this rank's alone."""
        if self.membership is None:
            return [self.rank.carry_out(order)]
        if self._closed:
            raise GroupError(self.membership.watchdog.failure or "this engine was closed; make another")
        if isinstance(order, ANSWERED):  # it may take minutes, and ends the group
            return self._told(order)
        with interrupts_wait():
            return self._told(order)

    def close(self) -> None:
        """End the group in peace; a second call does nothing."""
        if self.membership is not None and not self._closed:
            self._closed = True
            self.rank.close()
            self.membership.leave()
            close_world()

    def _told(self, order: object) -> Sequence[Any]:
        assert self.membership is not None, "a group is told"
        assert self.membership.leader is not None, "rank 0 leads"
        try:
            self.membership.leader.tell(order)
            if not isinstance(order, ANSWERED):
                return [self.rank.carry_out(order)]
            return self._answered(order)
        except BaseException as error:
            if isinstance(error, ValueError) and isinstance(order, ANSWERED):
                raise  # every rank has answered, and waits for the next order
            raise self._blame(error) from error

    def _answered(self, order: object) -> list[Any]:
        assert self.membership is not None, "a group answers"
        assert self.membership.leader is not None, "rank 0 leads"
        answers = [_attempt(self.rank, order), *self.membership.leader.hear()]
        for _, sentence in answers:
            if sentence is not None:
                raise ValueError(sentence)
        return [value for value, _ in answers]

    def _blame(self, error: BaseException) -> BaseException:
        """The group is beyond help: say why, and let nothing of it live on."""
        assert self.membership is not None, "one rank alone keeps its exceptions"
        self._closed = True
        watchdog, ending = self.membership.watchdog, error
        if isinstance(error, KeyboardInterrupt):
            watchdog.announce_interruption()
        else:
            ending = watchdog.blame(error)
        if self.rank.device.type == "cpu":  # NCCL's groups would wait for the dead
            with suppress(RuntimeError):
                close_world()  # so that this process can make another engine
        return ending


def _attempt(rank: Rank, order: object) -> tuple[Any, str | None]:
    """An order's result, or the sentence that says why there is none."""
    try:
        return rank.carry_out(order), None
    except ValueError as error:
        return None, str(error)
