"""Requests that come, wait, are cancelled and end, in simulated time; after every step nothing may be out of place."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from slipstream.config.engine import EngineConfig
from slipstream.config.grammar import choice, json_schema, lark, regex
from slipstream.config.sampling import SamplingParams
from slipstream.engine.engine import Ending, Engine
from slipstream.flow.output import Answer, FinishReason, Progress
from slipstream.flow.request import Request
from slipstream.schedule.scheduler import most_entries
from slipstream.telemetry.clock import ManualClock
from tests.tiny_grammar import grammars


class PairStop:
    """Stops after two tokens in a row, as a stop string that spans tokens does."""

    def __init__(self, pair: tuple[int, int] | None) -> None:
        self.pair = pair
        self._last = -1

    def push(self, token_id: int) -> bool:
        found = (self._last, token_id) == self.pair
        self._last = token_id
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request of a day."""

    request: Request
    arrival_s: float
    stop_ids: frozenset[int] = frozenset()
    stop_pair: tuple[int, int] | None = None
    patience_s: float | None = None  # cancelled so long after it came; None: it stays
    leaves: str | None = None  # or as soon as it is "entering", "decoding" or "preempted"
    valid: bool = True

    @property
    def ending(self) -> Ending:
        grammar = self.request.params.grammar
        automaton = None if grammar is None else grammars().open(grammar)
        return Ending(stop_ids=self.stop_ids, matcher=PairStop(self.stop_pair), grammar=automaton)


@dataclass(slots=True)
class Day:
    """Runs visits through an engine; `held`: the ids that the device side knows."""

    engine: Engine
    clock: ManualClock
    tokens: dict[int, list[int]] = field(default_factory=dict)  # as they were streamed
    answers: dict[int, Answer] = field(default_factory=dict)
    cancelled: dict[int, str] = field(default_factory=dict)  # and where it stood
    refused: set[int] = field(default_factory=set)
    num_steps: int = 0
    num_preemptions: int = 0
    _live: dict[int, Visit] = field(default_factory=dict)

    def run(self, visits: Sequence[Visit], *, held: Collection[int]) -> None:
        """From the first arrival until the last answer."""
        events = [(visit.arrival_s, place, visit) for place, visit in enumerate(visits)]
        events += [
            (visit.arrival_s + visit.patience_s, place, visit.request.id)
            for place, visit in enumerate(visits, start=len(visits))
            if visit.patience_s is not None
        ]
        events.sort(key=lambda event: event[:2], reverse=True)
        most_steps = self.num_steps + 200 + 40 * sum(_size(visit) for visit in visits)
        while events or self.engine.busy:
            if not self.engine.busy:
                self.clock.advance(max(0.0, events[-1][0] - self.clock.now()))
            while events and events[-1][0] <= self.clock.now():
                self.happen(events.pop()[2])
            self.step(held)
            for request in [each for each, visit in self._live.items() if visit.leaves == self.place_of(each)]:
                self.happen(request)
            assert self.num_steps < most_steps, "requests get nowhere"

    def happen(self, event: Visit | int) -> None:
        """Somebody comes, or goes."""
        if isinstance(event, Visit):
            self.come(event)
            return
        if event in self._live:
            del self._live[event]
            self.cancelled[event] = self.place_of(event)
        self.engine.abort(event)  # unknown by now, often enough
        self.check_pages()

    def place_of(self, request: int) -> str:
        """Where a request stands."""
        state = self.engine.running.get(request)
        if state is not None:
            return "decoding" if state.decoding else "entering"
        return "preempted" if self.engine._waiting[request].preemptions else "waiting"

    def come(self, visit: Visit) -> None:
        """Add a request; one that is refused changes nothing."""
        if visit.valid:
            self.engine.add(visit.request, visit.ending)
            self._live[visit.request.id] = visit
            return
        before = self.picture()
        with pytest.raises(ValueError, match=r"\w+ .*\w+ .*\w+ "):
            self.engine.add(visit.request, visit.ending)
        assert self.picture() == before
        self.refused.add(visit.request.id)

    def picture(self) -> tuple[object, ...]:
        """What a refusal must leave alone."""
        engine = self.engine
        return list(engine.running), list(engine._waiting), list(engine.line._heap), engine.pages.num_free

    def step(self, held: Collection[int]) -> None:
        """One step, and a look at everything."""
        self.clock.advance(0.001)
        news = self.engine.step()
        self.num_steps += 1
        for each in news:
            self.hear(each)
        running, waiting = self.engine.running, self.engine._waiting
        self.check_pages()
        assert len(running) <= self.engine.config.max_batch
        assert set(held) == set(running), "the device holds what no longer runs"
        assert {*running, *waiting} == self._live.keys()
        assert len(self.engine.line) == len(waiting)
        first = self.engine.line.first()
        worst = max((state.ticket for state in running.values()), default=None)
        assert first is None or worst is None or worst < first, "one that waits was passed"

    def hear(self, news: Progress) -> None:
        """Collect a request's tokens."""
        assert news.request in self._live, "news of a request that is gone"
        self.tokens.setdefault(news.request, []).extend(news.new_tokens)
        assert news.new_tokens
        assert 0 <= news.accepted <= len(news.new_tokens)
        if news.answer is not None:
            del self._live[news.request]
            self.answers[news.request] = news.answer
            self.num_preemptions += news.answer.preemptions

    def check_pages(self) -> None:
        self.engine.pages.check([state.pages for state in self.engine.running.values()])


def check_answer(visit: Visit, answer: Answer, streamed: Sequence[int]) -> None:
    """What is reported of an answer is what was sent."""
    assert answer.tokens == tuple(streamed)
    assert answer.statistics.emitted == sum(answer.runs) == len(answer.tokens) - 1
    assert answer.statistics.cycles == len(answer.runs) == sum(answer.statistics.histogram)
    assert answer.statistics.accepted <= answer.statistics.proposed
    assert answer.num_prompt == len(visit.request.prompt)
    assert 0 <= answer.num_cached < answer.num_prompt
    assert answer.seed == visit.request.seed
    assert answer.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    if visit.request.steps == 0:
        assert answer.statistics.proposed == 0


def check_end(day: Day, visits: Sequence[Visit]) -> None:
    """Everybody was served, refused or left, and nothing remains."""
    engine = day.engine
    assert day.answers.keys() | day.cancelled.keys() | day.refused == {visit.request.id for visit in visits}
    assert day.refused == {visit.request.id for visit in visits if not visit.valid}
    assert not engine.running
    assert not engine._waiting
    assert engine.line.first() is None
    assert not engine.line._heap
    assert engine.pages.num_free == engine.config.num_pages - 1, "pages were lost"
    assert not engine.pages._twins


def random_visits(
    random: Random,
    count: int,
    config: EngineConfig,
    *,
    vocab_size: int,
    pause_s: float,
    asks: Callable[[Random], dict[str, Any]] = lambda random: {},
) -> list[Visit]:
    """A day's requests: shared beginnings, several answers to one prompt, cancels, priorities, 5% that cannot run.

    asks: what else each wants of sampling.
    """
    heads = [_tokens(random, random.randint(3, config.max_len // 4), vocab_size) for _ in range(6)]
    visits: list[Visit] = []
    now = 0.0
    while len(visits) < count:
        now += random.expovariate(1 / pause_s) if random.random() < 0.5 else 0.0  # they come in crowds
        prompt = random.choice(heads) if random.random() < 0.5 else ()
        prompt += _tokens(random, random.randint(1, config.max_len // 8), vocab_size)
        prompt = prompt[: _most_tokens(config, 1)]
        answers = random.choice((1, 1, 1, 1, 2, 4))
        params = SamplingParams(
            max_tokens=min(random.choice((1, 2, 8, 20, 40)), _most_tokens(config, len(prompt))),
            temperature=random.choice((0.0, 0.0, 0.8)),
            **asks(random),
        )
        stop_ids = frozenset(random.sample(range(vocab_size), random.choice((0, 0, 1, 3))))
        stop_pair = (random.randrange(vocab_size), random.randrange(vocab_size)) if random.random() < 0.3 else None
        priority, steps = random.choice((0, 0, 0, -1, 1, 5)), random.choice((None, None, None, 0, 1, 3))
        leaves = random.choice(("entering", "decoding", "preempted")) if random.random() < 0.1 else None
        patience = random.expovariate(1 / (20 * pause_s)) if random.random() < 0.15 else None
        for answer in range(min(answers, count - len(visits))):
            request = Request(
                id=len(visits), prompt=prompt, params=params, seed=1000 + answer, priority=priority, steps=steps
            )
            visit = Visit(
                request=request,
                arrival_s=now,
                stop_ids=stop_ids,
                stop_pair=stop_pair,
                patience_s=patience,
                leaves=leaves,
            )
            visits.append(_spoilt(random, visit, config) if random.random() < 0.05 else visit)
    return visits


WISHES: tuple[dict[str, Any], ...] = (
    {"grammar": regex("[1-9][0-9]{2,9}(;| the end)")},
    {"grammar": regex("the quick brown (fox|dog) jumps over the lazy dog")},
    {"grammar": choice(["the quick", "the quick brown fox", "lazy"])},
    {"grammar": json_schema({"enum": ["fox", "dog", [1, 2, 3]]})},
    {"grammar": lark('start: number ("+" number)*\nnumber: /[0-9]{1,4}/'), "top_p": 0.9},
    {"frequency_penalty": 0.7, "presence_penalty": 0.3},
    {"repetition_penalty": 1.2, "logit_bias": {5: 2.0}},
    {"bad_word_ids": ((3,), (4, 5)), "logprobs": 2},
    {"top_k": 5, "min_p": 0.02},
)


def some_wish(random: Random) -> dict[str, Any]:
    """Half of all requests want something of sampling."""
    return random.choice(WISHES) if random.random() < 0.5 else {}


def _spoilt(random: Random, visit: Visit, config: EngineConfig) -> Visit:
    """The same request, made impossible."""
    asked, capacity = visit.request, (config.num_pages - 1) * config.page_size
    kind = random.randrange(3 if most_entries(replace(asked, prompt=(1,) * config.max_len), config) <= capacity else 4)
    prompt, params, steps = asked.prompt, asked.params, asked.steps
    if kind == 0:
        prompt = ()
    elif kind == 1:
        prompt = (1,) * config.max_len
    elif kind == 2:
        steps = -1
    else:
        params = SamplingParams(max_tokens=config.max_len)  # more than the pool holds
    return replace(visit, request=replace(asked, prompt=prompt, params=params, steps=steps), valid=False)


def num_reachable(root: object) -> int:
    """Things in the containers and fields that an object leads to; strangers' insides do not count."""
    seen: set[int] = set()
    todo: list[Any] = [root]
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            todo += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            todo += each
        elif type(each).__module__.startswith("slipstream."):
            names = [*getattr(each, "__dict__", ()), *getattr(type(each), "__slots__", ())]
            todo += [getattr(each, name) for name in names if hasattr(each, name)]
    return len(seen)


def _most_tokens(config: EngineConfig, num_prompt: int) -> int:
    capacity = (config.num_pages - 1) * config.page_size
    return min(config.max_len, capacity - config.speculation.num_tail_entries - 1) - num_prompt


def _tokens(random: Random, count: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(random.randrange(vocab_size) for _ in range(count))


def _size(visit: Visit) -> int:
    return len(visit.request.prompt) + visit.request.params.max_tokens
