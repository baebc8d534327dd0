"""A grammar that takes long to compile: only who asked for it waits, and nobody's cycle."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from slipstream import LLM
from slipstream.config.grammar import Grammar, regex
from slipstream.config.sampling import SamplingParams
from slipstream.serve.messages import Abort, Accepted, FromEngine, News, Piece, Refused, Stop, Submit, ToEngine
from slipstream.serve.process import EngineProcess
from slipstream.serve.profile import Profiler
from slipstream.serve.wire import EngineWire
from slipstream.text.grammar import Automaton, Grammars
from tests.patience import patience
from tests.unit.cli.world import World

PLAIN = SamplingParams(max_tokens=40, ignore_eos=True)
SLOW, OTHER, BROKEN = regex("[a-c]{3}"), regex("[d-f]{2}"), regex("(")


@dataclass(slots=True)
class Gate:
    """Where the compiling of SLOW waits, and what was compiled."""

    opened: threading.Event = field(default_factory=threading.Event)
    compiled: list[Grammar] = field(default_factory=list)

    def around(self, compile_it: Callable[[Grammars, Grammar], Automaton]) -> Callable[[Grammars, Grammar], Automaton]:
        def compile_later(grammars: Grammars, grammar: Grammar) -> Automaton:
            assert grammar != SLOW or self.opened.wait(patience(60)), "the test has forgotten to open the gate"
            self.compiled.append(grammar)
            return compile_it(grammars, grammar)

        return compile_later


class Door:
    """The other end of the engine's socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.wire = EngineWire(sock, FromEngine)
        self.heard: list[Accepted | Refused | Piece] = []

    def ask(self, answer: int, params: SamplingParams) -> None:
        self.wire.send(Submit(answer=answer, prompt=[5, 6, 7], params=params))

    def listen(self, until: Callable[[], bool]) -> None:
        """Hear what the engine says until something holds."""
        for _ in range(1000):
            if until():
                return
            for message in self.wire.receive(wait_s=patience(0.1)):
                self.heard += message.pieces if isinstance(message, News) else [message]
        raise AssertionError(f"it never came; heard {self.heard}")

    def of(self, answer: int) -> list[Accepted | Refused | Piece]:
        return [each for each in self.heard if each.answer == answer]

    def ended(self, answer: int) -> bool:
        return any(isinstance(each, Piece) and each.end is not None for each in self.of(answer))

    def tokens(self, answer: int) -> list[int]:
        return [token for each in self.of(answer) if isinstance(each, Piece) for token in each.tokens]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    found = Gate()
    monkeypatch.setattr(Grammars, "_compile", found.around(Grammars._compile))
    return found


@pytest.fixture
def llm(http_world: World) -> LLM:
    return LLM(http_world.model, draft=http_world.draft, steps=3, device="cpu")


@pytest.fixture
def door(llm: LLM, gate: Gate) -> Iterator[Door]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = EngineProcess(EngineWire(theirs, ToEngine), llm, Profiler(None))
        thread = threading.Thread(target=process.run)
        thread.start()
        found = Door(ours)
        try:
            yield found
        finally:
            gate.opened.set()
            found.wire.send(Stop())
            thread.join(patience(30))
        assert not thread.is_alive()


def test_others_begin_and_end_their_answers_while_a_grammar_is_compiled(door: Door, gate: Gate, llm: LLM) -> None:
    door.ask(0, SamplingParams(max_tokens=20, grammar=SLOW))
    door.ask(1, PLAIN)
    door.listen(lambda: door.ended(1))
    assert len(door.tokens(1)) == 40
    assert door.of(0) == gate.compiled == []
    gate.opened.set()
    door.listen(lambda: door.ended(0))
    assert isinstance(door.of(0)[0], Accepted)
    assert re.fullmatch("[a-c]{3}", llm.tokenizer.decode(door.tokens(0)))


def test_an_answer_that_runs_already_goes_on_in_the_meantime(door: Door) -> None:
    door.ask(0, PLAIN)
    door.listen(lambda: bool(door.tokens(0)))
    door.ask(1, SamplingParams(max_tokens=20, grammar=SLOW))
    door.listen(lambda: door.ended(0))
    assert door.of(1) == []


def test_another_grammar_does_not_wait_for_a_slow_one(door: Door, llm: LLM) -> None:
    door.ask(0, SamplingParams(max_tokens=20, grammar=SLOW))
    door.ask(1, SamplingParams(max_tokens=20, grammar=OTHER))
    door.listen(lambda: door.ended(1))
    assert re.fullmatch("[d-f]{2}", llm.tokenizer.decode(door.tokens(1)))
    assert door.of(0) == []


def test_who_asks_for_the_same_grammar_waits_for_the_same_compiling(door: Door, gate: Gate) -> None:
    params = SamplingParams(max_tokens=20, grammar=SLOW, n=2)
    door.ask(0, params)
    door.ask(2, params)
    gate.opened.set()
    door.listen(lambda: all(map(door.ended, range(4))))
    door.ask(4, params)
    door.listen(lambda: door.ended(4) and door.ended(5))
    assert gate.compiled == [SLOW]


def test_a_grammar_that_means_nothing_is_refused_each_time(door: Door) -> None:
    for answer in range(3):
        door.ask(answer, SamplingParams(max_tokens=20, grammar=BROKEN))
    door.listen(lambda: len(door.heard) == 3)
    for each in door.heard:
        assert isinstance(each, Refused)
        assert each.sentence.startswith("the regex cannot be used")


def test_who_hangs_up_before_the_grammar_is_compiled_is_forgotten(door: Door, gate: Gate) -> None:
    door.ask(0, SamplingParams(max_tokens=20, grammar=SLOW, n=2))
    door.wire.send(Abort(answer=0))
    door.wire.send(Abort(answer=1))
    door.ask(2, PLAIN)
    door.listen(lambda: door.ended(2))
    gate.opened.set()
    door.ask(3, SamplingParams(max_tokens=20, grammar=SLOW))
    door.listen(lambda: door.ended(3))
    assert door.of(0) == door.of(1) == []
