"""Run an engine over the fake executor to its end, with every page's place checked after every step."""

from slipstream.engine.engine import Ending, Engine
from slipstream.flow.output import Answer
from slipstream.flow.request import Request
from tests.fake_executor import answer_alone
from tests.tiny_engine import NoStops


def put(engine: Engine, *requests: Request) -> None:
    """Add requests that nothing but their length ends."""
    for request in requests:
        engine.add(request, Ending(stop_ids=(), matcher=NoStops()))


def finish(engine: Engine, *, most_steps: int = 5000) -> dict[int, Answer]:
    """All answers."""
    answers: dict[int, Answer] = {}
    for _ in range(most_steps):
        if not engine.busy:
            return answers
        answers |= {news.request: news.answer for news in engine.step() if news.answer is not None}
        engine.pages.check([state.pages for state in engine.running.values()])
    raise AssertionError("requests get nowhere")


def alone(request: Request) -> tuple[int, ...]:
    """The tokens that a request of `put` gets by itself."""
    return answer_alone(request, stop_ids=frozenset(), matcher=NoStops(), max_len=256)[0]
