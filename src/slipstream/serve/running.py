"""Drive an engine from the Python door: all requests to their ends, or one piece by piece."""

from collections.abc import Callable, Generator, Sequence

from slipstream.engine.engine import Engine
from slipstream.serve.completion import Completion, Delta
from slipstream.serve.pending import Pending, add_all, completion_of, delta_of
from slipstream.text.stops import StopMatcher


def refuse_while_answering(engine: Engine) -> None:
    """Raises ValueError while a stream is open."""
    if engine.busy:
        raise ValueError("another answer is still being streamed; read that stream to its end, or close it")


def run_to_end(
    engine: Engine, pending: Sequence[Pending], on_finish: Callable[[int, Completion], None]
) -> list[Completion]:
    """All completions, in order; on_finish hears of each as it ends. Whatever is raised, nothing stays behind.

    Raises:
        ValueError: a stream is open, or a request could never run; nothing is run then.
    """
    places = {each.request.id: place for place, each in enumerate(pending)}
    done: dict[int, Completion] = {}
    refuse_while_answering(engine)
    try:
        add_all(engine, pending)
        while engine.busy:
            for news in engine.step():
                if news.answer is not None:
                    place = places[news.request]
                    done[place] = completion_of(news.answer, pending[place])
                    on_finish(place, done[place])
    finally:
        for each in pending:
            engine.abort(each.request.id)
    return [done[place] for place in range(len(pending))]


def run_in_pieces(engine: Engine, pending: Pending, shown: StopMatcher) -> Generator[Delta, None, None]:
    """One answer; shown: a matcher of its own, since one step may bring several pieces and the engine's is past all.

    Raises:
        ValueError: as `run_to_end`.
    """
    refuse_while_answering(engine)
    engine.add(pending.request, pending.ending)
    try:
        while engine.busy:
            for news in engine.step():
                yield delta_of(news, shown, pending)
    finally:
        engine.abort(pending.request.id)
