"""What the host spends on a token does not grow with the answer: scheduling, trimming, text, stops, streaming."""

from itertools import pairwise
from statistics import median
from time import thread_time

import pytest

from slipstream.config.engine import EngineConfig
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.engine.engine import Engine
from slipstream.flow.request import Request
from slipstream.serve.pending import Pending, delta_of
from slipstream.telemetry.clock import Clock
from slipstream.text.stops import StopMatcher
from slipstream.text.tokenizer import Tokenizer, load_tokenizer
from tests.fake_executor import FakeExecutor
from tests.unit.text import tiny_tokenizer

LENGTH, PIECE = 100_000, 2_500
STOPS = ("a text that never comes", "nor this")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer.save(folder, tokenizer=tiny_tokenizer.raw(), config={})
    return load_tokenizer(folder)


def piece_times(tokenizer: Tokenizer, shape: Speculation, *, length: int) -> tuple[list[float], str, str]:
    """Processor seconds of every 2,500 tokens of one answer, what was streamed of it, and what it is."""
    config = EngineConfig(speculation=shape, max_len=length + 100, num_pages=length // 16 + 50)
    engine = Engine(config, FakeExecutor(config, careful=False), clock=Clock())
    params = SamplingParams(max_tokens=length, temperature=1.0)
    request = Request(id=0, prompt=tuple(range(30)), params=params, seed=3)
    matcher, shown = StopMatcher(tokenizer, STOPS), StopMatcher(tokenizer, STOPS)
    pending = Pending("", request, matcher, stop_ids=(), grammar=None, index=0)
    engine.add(request, pending.ending)
    pieces: list[str] = []
    marks = [thread_time()]
    num_tokens = 0
    while engine.busy:
        for news in engine.step():
            num_tokens += len(news.new_tokens)
            pieces.append(delta_of(news, shown, pending).text)
        if num_tokens >= PIECE * len(marks):
            marks.append(thread_time())
    assert num_tokens == length
    return [later - earlier for earlier, later in pairwise(marks)], "".join(pieces), matcher.text


@pytest.mark.parametrize("shape", [speculation(0), speculation(4)], ids=["plain", "chain"])
def test_the_last_tokens_of_a_hundred_thousand_cost_what_the_first_ones_do(
    tokenizer: Tokenizer, shape: Speculation
) -> None:
    times, streamed, text = piece_times(tokenizer, shape, length=LENGTH)
    assert streamed == text
    third = len(times) // 3
    first, last = median(times[:third]), median(times[-third:])
    print(f"us a token: {1e6 * first / PIECE:.1f} of the first third, {1e6 * last / PIECE:.1f} of the last")
    assert last < 1.3 * first
