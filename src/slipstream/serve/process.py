"""The engine's process under the HTTP door: messages in, steps of the engine, messages out.

It is started by serve/http/child.py with a socket, and ends with it. Prompts come as token ids; text is looked at here
only where a stop string may end an answer.
"""

import random
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from slipstream.engine.engine import Ending
from slipstream.engine.executor import RankExecutor
from slipstream.flow.orders import StartGrammar
from slipstream.parallel.stamps import Stamps
from slipstream.parallel.watchdog import GroupError
from slipstream.serve.compiling import Compiling
from slipstream.serve.llm import LLM
from slipstream.serve.loading import load
from slipstream.serve.manner import Manner, check_steps
from slipstream.serve.messages import (
    Abort,
    Accepted,
    Failed,
    Load,
    Loading,
    News,
    Profiled,
    Ready,
    Refused,
    StartProfile,
    Stop,
    StopProfile,
    Submit,
    ToEngine,
)
from slipstream.serve.pending import NoText, Pending, Requests
from slipstream.serve.profile import Profiler
from slipstream.serve.report import Reporter, describe
from slipstream.serve.told import piece_of
from slipstream.serve.warmup import warm_up
from slipstream.serve.wire import EngineWire
from slipstream.telemetry.clock import Clock, Stopwatch
from slipstream.text.grammar import Grammars

LOOK_S = 0.2
COMPILING_S = 0.005  # between two looks at a grammar that is being compiled while there is nothing else to do
GOODBYE_S = 2.0  # for the last message to leave


class EngineProcess:
    """Runs until it is told to stop, or the HTTP process is gone."""

    def __init__(self, wire: EngineWire, llm: LLM, profiler: Profiler) -> None:
        self.wire, self.llm, self.engine, self.profiler = wire, llm, llm.engine, profiler
        self.requests = Requests(
            llm.tokenizer, None, llm.model_config, seeds=random.Random(), open_grammars=grammars_of(llm)
        )
        self.compiling = Compiling(self.requests, llm.started.executor)
        self.reporter = Reporter(llm.engine, llm.engine.clock, stamps_of(llm))
        self._answers: dict[int, int] = {}  # by the engine's id
        self._ids: dict[int, int] = {}  # the other way
        self._stopped = False

    def run(self) -> None:
        """Take messages in whenever there are any; in between, step."""
        self.wire.send(News(pieces=[], report=self.reporter.now()))
        while not self._stopped and not self.wire.closed:
            messages = self.wire.receive(wait_s=0 if self.engine.busy else self._idle_s)
            self._look_at_group()
            before_s = self._device_s
            with Stopwatch(self.engine.clock) as watch:
                for message in messages:
                    self._hear(message)
                for submission in self.compiling.finished():
                    self._admit(submission)
                if self.engine.busy:
                    self._step()
            self.reporter.host_s += watch.seconds - (self._device_s - before_s)

    @property
    def _idle_s(self) -> float | None:
        """How long to listen while there is no work: for ever, unless other ranks may be lost meanwhile."""
        if self.compiling.busy:
            return COMPILING_S
        return None if self.llm.tp == 1 else LOOK_S

    def _look_at_group(self) -> None:
        """Tell why, before the watchdog ends this process, if a rank was lost while nothing was asked of it."""
        executor = self.llm.started.executor
        if self.engine.busy or not isinstance(executor, RankExecutor) or executor.membership is None:
            return
        if (sentence := executor.membership.watchdog.failure) is not None:
            self.wire.send(Failed(sentence=sentence))
            self.wire.drain(GOODBYE_S)
            raise GroupError(sentence)

    @property
    def _device_s(self) -> float:
        return self.engine.costs.prefill_s + self.engine.costs.cycle_s

    def _step(self) -> None:
        pieces = [piece_of(self._answers[news.request], news) for news in self.engine.step()]
        for piece in pieces:
            if piece.end is not None:
                self._answers.pop(self._ids.pop(piece.answer))
        report = self.reporter.due()
        if pieces or report is not None:
            self.wire.send(News(pieces=pieces, report=report))

    def _hear(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Abort(answer=answer):
                self._abort(answer)
            case StartProfile():
                self.wire.send(Profiled(sentence=self.profiler.start()))
            case StopProfile():
                self.wire.send(self.profiler.stop())
            case Stop():
                self._stopped = True
            case _:
                raise AssertionError(f"{message} comes only once")

    def _submit(self, message: Submit) -> None:
        """Queue all answers to a prompt, when its grammar is compiled if it has one."""
        try:
            waits = self.compiling.takes(message)
        except ValueError as error:
            self.wire.send(Refused(answer=message.answer, sentence=str(error)))
            return
        if not waits:
            self._admit(message)

    def _admit(self, message: Submit) -> None:
        """Queue all answers to a prompt, or none."""
        added: list[Pending] = []
        try:
            check_steps(message.steps, self.engine.speculation.steps)
            manner = Manner(priority=message.priority, steps=message.steps)
            made = self.requests.tokens(message.prompt, message.params, manner)
            for each in made:
                self.engine.add(each.request, self._ending(each))
                added.append(each)
        except ValueError as error:
            for each in added:
                self.engine.abort(each.request.id)
            self.wire.send(Refused(answer=message.answer, sentence=str(error)))
            return
        for each in made:
            self._answers[each.request.id] = message.answer + each.index
            self._ids[message.answer + each.index] = each.request.id
        self.wire.send(Accepted(answer=message.answer))

    def _abort(self, answer: int) -> None:
        if self.compiling.drop(answer):
            return
        request = self._ids.pop(answer, None)  # None: it has ended in the meantime
        if request is not None:
            del self._answers[request]
            self.engine.abort(request)
            if not self.engine.busy:
                self.wire.send(News(pieces=[], report=self.reporter.now()))

    def _ending(self, pending: Pending) -> Ending:
        if pending.request.params.stop:
            return pending.ending
        return replace(pending.ending, matcher=NoText())


def grammars_of(llm: LLM) -> Callable[[], Grammars] | None:
    """Of this process's rank, so that a grammar is compiled once; None where all ranks are elsewhere."""
    executor = llm.started.executor
    return (lambda: executor.rank.grammars) if isinstance(executor, RankExecutor) else None


def stamps_of(llm: LLM) -> Stamps | None:
    """Of this process's rank; None where all ranks are elsewhere."""
    try:
        return llm.worker.stamps
    except ValueError:
        return None


def serve_socket(sock: socket.socket) -> int:
    """Load what the first message says, then answer; the process's exit code."""
    wire = EngineWire(sock, ToEngine)
    try:
        return _serve(wire)
    except (ValueError, GroupError) as error:
        wire.send(Failed(sentence=str(error), bad_input=isinstance(error, ValueError)))
    except Exception as error:
        traceback.print_exc()
        words = " ".join(str(error).split())
        wire.send(Failed(sentence=f"the engine failed with {type(error).__name__}{': ' if words else ''}{words}"))
    wire.drain(GOODBYE_S)
    return 1


def _serve(wire: EngineWire) -> int:
    order = wire.receive(wait_s=None)
    if wire.closed:
        return 0
    (first,) = order
    assert isinstance(first, Load), "loading comes first"
    llm = load(wire, first)
    try:
        with Stopwatch(Clock()) as watch:
            if first.warm_up:
                warm_up(llm, wire)
                wire.send(Loading(stage="warming up: grammars"))
                llm.started.executor.order(StartGrammar())
        process = EngineProcess(wire, llm, Profiler(first.profile_dir))
        wire.send(Ready(info=describe(llm, warm_up_s=watch.seconds)))
        try:
            process.run()
        except ValueError as error:  # what a user asked for was checked when it came
            raise RuntimeError(str(error)) from error
    finally:
        llm.close()
    wire.drain(GOODBYE_S)
    return 0


def main() -> NoReturn:
    """Run as a child of the HTTP process, which alone hears signals; argv[1] is the socket's descriptor."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    raise SystemExit(serve_socket(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
