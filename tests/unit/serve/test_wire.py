"""The socket between the two processes: whole messages from any pieces, and an engine that never waits to be heard."""

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.cli import door
from slipstream.config.grammar import regex
from slipstream.config.sampling import SamplingParams
from slipstream.serve.messages import Abort, News, Piece, Stop, Submit, ToEngine
from slipstream.serve.wire import EngineWire, Frames, frame
from slipstream.telemetry.clock import Clock, Stopwatch


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@given(payloads=st.lists(st.binary(max_size=300)), cut=st.integers(1, 50))
def test_messages_are_whole_however_they_are_cut(payloads: list[bytes], cut: int) -> None:
    data = b"".join(frame(payload) for payload in payloads)
    frames = Frames()
    found = [each for at in range(0, len(data), cut) for each in frames.push(data[at : at + cut])]
    assert found == payloads


def test_parameters_travel_as_they_are(pair: tuple[socket.socket, socket.socket]) -> None:
    params = SamplingParams(
        max_tokens=3, temperature=0.5, stop=("a", "b"), logit_bias={5: -1.0}, bad_words=("c",), grammar=regex("a+")
    )
    message = Submit(answer=7, prompt=[1, 2], params=params, steps=0, priority=-1)
    sender, receiver = EngineWire(pair[0], ToEngine), EngineWire(pair[1], ToEngine)
    sender.send(message)
    sender.send(Abort(answer=7))
    assert receiver.receive(wait_s=1) == [message, Abort(answer=7)]
    sender.send(Stop())
    assert receiver.receive(wait_s=1) == [Stop()]


def test_an_engine_that_nobody_listens_to_goes_on_and_loses_nothing(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    engine, listener = EngineWire(pair[0], ToEngine), EngineWire(pair[1], News)
    with Stopwatch(Clock()) as watch:
        for index in range(2000):
            engine.send(News(pieces=[Piece(answer=index, tokens=[1] * 100, accepted=99)]))
    assert watch.seconds < 5
    heard: list[News] = []
    while len(heard) < 2000:
        heard += listener.receive(wait_s=1)
        engine.receive(wait_s=0)
    assert [news.pieces[0].answer for news in heard] == list(range(2000))


def test_a_listener_that_is_gone_is_noticed(pair: tuple[socket.socket, socket.socket]) -> None:
    engine = EngineWire(pair[0], ToEngine)
    pair[1].close()
    assert engine.receive(wait_s=1) == []
    assert engine.closed
    engine.send(Stop())


def test_without_the_extra_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs fastapi, .*pip install 'slipstream\[serve\]'"):
        door.check_extra()
