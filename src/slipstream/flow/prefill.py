"""Prompts on their way into the batch: requests that enter, and the chunks that are run between two cycles."""

from dataclasses import dataclass

from slipstream.flow.request import Request, RequestId
from slipstream.flow.span import PageSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A request that enters, or comes back after it was preempted."""

    request: Request
    context: tuple[int, ...]  # tokens to run: the prompt, and after a preemption the answer so far
    root: int | None  # the token after the context where it is known; None: it is to be drawn
    span: PageSpan  # granted by cache
    num_cached: int = 0  # positions whose entries are on its pages already
    score: int | None = None  # log-probabilities of the prompt's tokens are wanted, beside so many likeliest; None = no


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Positions [start, stop) of an entering request's context."""

    request: RequestId
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """One forward between two cycles; chunks stand on a fixed grid, in the order of the line."""

    entries: tuple[Entry, ...]
    chunks: tuple[Chunk, ...]
