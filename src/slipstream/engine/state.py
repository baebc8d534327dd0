"""What the host knows of one request."""

from dataclasses import dataclass, field

from slipstream.flow.batch import Row
from slipstream.flow.logprobs import Logprobs
from slipstream.flow.output import Answer, FinishReason, Progress, Run, Statistics
from slipstream.flow.prefill import Entry
from slipstream.flow.request import Request
from slipstream.flow.span import PageSpan
from slipstream.schedule.line import Ticket
from slipstream.verify.finish import GrammarEnd, Matcher, trim


@dataclass(slots=True, kw_only=True)
class Running:
    """A request between its arrival and its end; it holds pages while it is in the batch."""

    request: Request
    context: tuple[int, ...]  # what enters, at first or again: all tokens but the root, once there is one
    arrival: int
    matcher: Matcher
    grammar: GrammarEnd | None
    stop_ids: frozenset[int]
    longest: int  # tokens that the answer may get
    pages: tuple[int, ...] = ()
    num_run: int = 0  # positions of the context that the device has run
    num_context: int = 0  # positions that it must run before the next cycle
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)  # one a token, where they are wanted
    prompt_logprobs: list[Logprobs] = field(default_factory=list)  # one a token of the prompt but the first; the same
    runs: list[int] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)
    reason: FinishReason | None = None
    num_cached: int = 0  # positions of the prompt that were found in the cache when it first entered
    preemptions: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def ticket(self) -> Ticket:
        """Its place among others."""
        return self.request.priority, self.arrival, self.request.id

    @property
    def decoding(self) -> bool:
        """Whether it takes part in cycles."""
        return self.num_run == self.num_context

    @property
    def scores_prompt(self) -> bool:
        """Whether its prompt must be run whole, for log-probabilities that are not all there yet."""
        return self.request.params.prompt_logprobs is not None and not self.tokens

    @property
    def room(self) -> int:
        """How many more tokens the answer may get."""
        return self.longest - len(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Prompt and answer so far."""
        return len(self.request.prompt) + len(self.tokens)

    def take(self, run: Run) -> tuple[int, ...]:
        """Trim a run and keep it; what was kept."""
        trimmed = trim(run.tokens, room=self.room, stop_ids=self.stop_ids, matcher=self.matcher, grammar=self.grammar)
        self.tokens.extend(trimmed.tokens)
        if run.logprobs is not None:
            self.logprobs.extend(run.logprobs[: len(trimmed.tokens)])
        self.reason = trimmed.reason
        return trimmed.tokens

    def logprobs_of(self, last: int) -> tuple[Logprobs, ...] | None:
        """Of so many last tokens, where the request wants them."""
        if self.request.params.logprobs is None:
            return None
        return tuple(self.logprobs[len(self.logprobs) - last :])

    def logprobs_of_prompt(self) -> tuple[Logprobs, ...] | None:
        """All of them, where the request wants them."""
        return None if self.request.params.prompt_logprobs is None else tuple(self.prompt_logprobs)

    def entry(self, page_size: int) -> Entry:
        """How it enters, with its pages; what was scored of a prompt that is run again is forgotten."""
        self.prompt_logprobs = [] if self.scores_prompt else self.prompt_logprobs
        return Entry(
            request=self.request,
            context=self.context,
            root=self.tokens[-1] if self.tokens else None,
            span=PageSpan(pages=self.pages, page_size=page_size),
            num_cached=self.num_run,
            score=self.request.params.prompt_logprobs if self.scores_prompt else None,
        )

    def depth_limit(self, steps: int, draft_max_len: int | None) -> int:
        """How deep its next cycle may accept; a cycle of depth d emits d + 1 tokens at most.

        draft_max_len: where drafting ends, in tokens of context.
        """
        if self.request.steps is not None:
            steps = min(steps, self.request.steps)
        if draft_max_len is not None and self.num_tokens + steps > draft_max_len:
            self.statistics.not_drafted += steps > 0
            steps = 0
        return max(0, min(steps, self.room - 1))

    def row(self, depth_limit: int) -> Row:
        """This request's row of the next cycle."""
        return Row(
            request=self.request.id,
            root_token=self.tokens[-1],
            root_position=self.num_tokens - 1,
            depth_limit=depth_limit,
            params=self.request.params,
            seed=self.request.seed,
            room=self.room,
        )

    def news(self, kept: tuple[int, ...], *, accepted: int) -> Progress:
        """What is told of its last tokens."""
        return Progress(
            request=self.request.id,
            new_tokens=kept,
            accepted=accepted,
            logprobs=self.logprobs_of(len(kept)),
            prompt_logprobs=self.logprobs_of_prompt() if len(kept) == len(self.tokens) else None,
            answer=None if self.reason is None else self.answer(),
        )

    def answer(self) -> Answer:
        """The finished answer."""
        assert self.reason is not None, "an answer has a reason"
        return Answer(
            request=self.request.id,
            tokens=tuple(self.tokens),
            logprobs=self.logprobs_of(len(self.tokens)),
            prompt_logprobs=self.logprobs_of_prompt(),
            finish_reason=self.reason,
            num_prompt=len(self.request.prompt),
            num_cached=self.num_cached,
            preemptions=self.preemptions,
            seed=self.request.seed,
            runs=tuple(self.runs),
            statistics=self.statistics,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
        )
