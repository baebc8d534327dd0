"""The device side as pure Python: tokens come from what is written on pages, so that a page in wrong hands shows.

An entry holds a hash of all tokens up to its position. The token after a context is a function of the last entry, for
sampled requests of seed and position, too. Drafts guess it more often than not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.config.engine import EngineConfig
from slipstream.config.speculation import Speculation
from slipstream.flow.batch import Batch, Row
from slipstream.flow.output import FinishReason, Run
from slipstream.flow.prefill import Prefill
from slipstream.flow.request import Request
from slipstream.telemetry.clock import ManualClock
from slipstream.verify.finish import Matcher

VOCAB = 60
MASK = 2**61 - 1
GARBAGE = -1  # what a rejected draft leaves behind


def mixed(value: int) -> int:
    value = (value ^ (value >> 31)) * 0x9E3779B97F4A7C15 & MASK
    return (value ^ (value >> 29)) * 0xBF58476D1CE4E5B9 & MASK


def entry_after(entry: int, token: int) -> int:
    """What a position holds: all tokens up to it."""
    return mixed(entry * 61 + token + 1)


def token_after(entry: int, position: int, request: Request) -> int:
    """The token that follows a context whose last entry is at `position`."""
    if request.params.greedy:
        return mixed(entry + 5) % VOCAB
    return mixed(entry + 7919 * request.seed + 104729 * position) % VOCAB


def entries_of(tokens: Sequence[int]) -> list[int]:
    found, entry = [], 0
    for token in tokens:
        entry = entry_after(entry, token)
        found.append(entry)
    return found


def answer_alone(
    request: Request, *, stop_ids: frozenset[int], matcher: Matcher, max_len: int
) -> tuple[tuple[int, ...], FinishReason]:
    """What a request gets when nothing else exists, one token at a time."""
    entry, tokens = entries_of(request.prompt)[-1], []
    room = min(request.params.max_tokens, max_len - len(request.prompt))
    while True:
        token = token_after(entry, len(request.prompt) + len(tokens) - 1, request)
        tokens.append(token)
        if matcher.push(token) or token in stop_ids:
            return tuple(tokens), FinishReason.STOP
        if len(tokens) == room:
            return tuple(tokens), FinishReason.LENGTH
        entry = entry_after(entry, token)


@dataclass(slots=True)
class Held:
    """What the device knows of a request."""

    request: Request
    slots: list[int]
    context: tuple[int, ...]
    root: int | None
    entries: list[int] = field(default_factory=list)  # what its positions should hold


class FakeExecutor:
    """Keeps entries by slot; `careful`: compares all of a request's entries before they are used."""

    has_draft = True

    def __init__(self, config: EngineConfig, *, clock: ManualClock | None = None, careful: bool = True) -> None:
        self.config, self.clock, self.careful = config, clock, careful
        self.memory = [GARBAGE] * (config.num_pages * config.page_size)
        self.held: dict[int, Held] = {}
        self.num_prefills = 0
        self.num_prefilled = 0  # positions

    def check(self, shape: Speculation) -> None:
        return

    def prefill(self, work: Prefill) -> tuple[Run | None, ...]:
        for entry in work.entries:
            assert entry.request.id not in self.held, "a request enters twice"
            slots = self.slots_of(entry.span.pages)
            entries = entries_of(entry.context[: entry.num_cached])
            self.held[entry.request.id] = Held(entry.request, slots, entry.context, entry.root, entries)
        self.num_prefills += 1
        self.tick()
        firsts: list[Run | None] = []
        for chunk in work.chunks:
            held = self.held[chunk.request]
            assert chunk.start == len(held.entries), "a chunk begins where the last one ended"
            self.compare(held)
            for position in range(chunk.start, chunk.stop):
                before = held.entries[-1] if held.entries else 0
                held.entries.append(entry_after(before, held.context[position]))
                self.memory[held.slots[position]] = held.entries[-1]
            self.num_prefilled += chunk.stop - chunk.start
            firsts.append(self.first(held) if chunk.stop == len(held.context) else None)
        return tuple(firsts)

    def first(self, held: Held) -> Run | None:
        """The token after a context; none where it is known."""
        position = len(held.context) - 1
        token = token_after(self.memory[held.slots[position]], position, held.request)
        if held.root is not None:
            assert token == held.root, "a request that comes back has another root"
            return None
        held.root = token
        return Run(request=held.request.id, tokens=(token,), proposed=0, depth=0)

    def step(self, batch: Batch) -> tuple[Run, ...]:
        self.tick()
        for request, pages in batch.grown:
            self.held[request].slots += self.slots_of(pages)
        return tuple(self.run(row, batch.speculation) for row in batch.rows)

    def run(self, row: Row, shape: Speculation) -> Run:
        held = self.held[row.request]
        position, token = row.root_position, row.root_token
        assert (held.root, len(held.entries)) == (token, position), "host and device disagree about the root"
        asked, most = held.request.steps, self.config.speculation.steps
        assert row.depth_limit <= min(most, most if asked is None else asked), "deeper than asked for"
        room = min(held.request.params.max_tokens + len(held.request.prompt), self.config.max_len) - position - 1
        assert row.depth_limit < room, "more may be accepted than the answer has room for"
        self.compare(held)
        tail = range(position, position + shape.num_tail_entries + 1)
        for place in tail:  # the highest one must exist
            self.memory[held.slots[place]] = GARBAGE
        entry = self.memory[held.slots[position - 1]]
        depth, tokens = min(row.depth_limit, shape.steps), []
        while True:
            entry = entry_after(entry, token)
            self.memory[held.slots[position]] = entry
            held.entries.append(entry)
            token = token_after(entry, position, held.request)
            tokens.append(token)
            position += 1
            if len(tokens) > depth or mixed(entry + 3) % 10 < 3:  # the draft guessed another token
                break
        held.root = token
        return Run(request=row.request, tokens=tuple(tokens), proposed=depth, depth=depth)

    def release(self, request: int, *, complete: int = 0) -> None:
        held = self.held.pop(request, None)
        if complete:
            assert held is not None, "nobody knows what is to be complete"
            assert complete <= len(held.entries), "an entry is to be complete that nobody wrote"
            self.compare(held)

    def compare(self, held: Held) -> None:
        if self.careful:
            written = [self.memory[slot] for slot in held.slots[: len(held.entries)]]
            assert written == held.entries, f"the entries of request {held.request.id} were overwritten"

    def slots_of(self, pages: Sequence[int]) -> list[int]:
        size = self.config.page_size
        return [page * size + place for page in pages for place in range(size)]

    def tick(self) -> None:
        if self.clock is not None:
            self.clock.advance(0.01)
