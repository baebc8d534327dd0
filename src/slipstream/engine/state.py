"""What the host knows of one running request."""

from dataclasses import dataclass, field

from slipstream.flow.batch import Row
from slipstream.flow.output import Answer, FinishReason, Statistics
from slipstream.flow.request import Request
from slipstream.flow.span import PageSpan
from slipstream.verify.finish import Matcher, trim


@dataclass(slots=True, kw_only=True)
class Running:
    """A request between its prefill and its end."""

    request: Request
    span: PageSpan
    matcher: Matcher
    stop_ids: frozenset[int]
    max_len: int
    tokens: list[int] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)
    reason: FinishReason | None = None
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def room(self) -> int:
        """How many more tokens the answer may get."""
        longest = min(self.request.params.max_tokens, self.max_len - len(self.request.prompt))
        return longest - len(self.tokens)

    def take(self, run: tuple[int, ...]) -> tuple[int, ...]:
        """Trim a run and keep it; what was kept."""
        trimmed = trim(run, room=self.room, stop_ids=self.stop_ids, matcher=self.matcher)
        self.tokens.extend(trimmed.tokens)
        self.reason = trimmed.reason
        return trimmed.tokens

    def row(self, steps: int) -> Row:
        """This request's row of the next cycle; a cycle of depth d emits d + 1 tokens at most."""
        return Row(
            request=self.request.id,
            root_token=self.tokens[-1],
            root_position=len(self.request.prompt) + len(self.tokens) - 1,
            depth_limit=max(0, min(steps, self.room - 1)),
            params=self.request.params,
            seed=self.request.seed,
        )

    def answer(self) -> Answer:
        """The finished answer."""
        assert self.reason is not None, "an answer has a reason"
        return Answer(
            request=self.request.id,
            tokens=tuple(self.tokens),
            finish_reason=self.reason,
            num_prompt=len(self.request.prompt),
            seed=self.request.seed,
            runs=tuple(self.runs),
            statistics=self.statistics,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
        )
