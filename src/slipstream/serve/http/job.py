"""One HTTP request, as far as the engine is concerned, and the answers that it gets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from slipstream.config.sampling import SamplingParams
from slipstream.serve.http.origins import Origins, Part
from slipstream.serve.http.reasoning import ThinkSplitter
from slipstream.serve.http.tools import NoTools, ToolCall, ToolParser
from slipstream.serve.messages import End, Piece, TokenChances
from slipstream.text.stops import StopMatcher
from slipstream.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What was asked for, settled."""

    id: str
    created: int  # seconds since 1970
    model: str  # the name that the answer bears
    prompts: list[list[int]]
    params: SamplingParams
    steps: int | None = None
    priority: int = 0
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    speculation_metrics: bool = False
    parts: bool = False  # whether chunks say whose their text is
    echoes: tuple[str, ...] = ()  # what each prompt's answers begin with
    prompt_alone: bool = False  # nothing follows the echo: the one token that the engine draws is left out
    parser: Callable[[], ToolParser] = NoTools
    splitter: Callable[[], ThinkSplitter | None] = lambda: None
    named_call: bool = False  # the answer had to call one function, which OpenAI ends with "stop"

    @property
    def num_answers(self) -> int:
        """Choices."""
        return len(self.prompts) * self.params.n

    def prompt_of(self, choice: "Choice") -> list[int]:
        """What a choice answers."""
        return self.prompts[choice.index // self.params.n]

    def echo_of(self, choice: "Choice") -> str:
        """What a choice's text begins with."""
        return self.echoes[choice.index // self.params.n] if self.echoes else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """What a piece added to a choice."""

    text: str
    reasoning: str
    calls: list[ToolCall]
    chances: list[TokenChances] | None
    num_tokens: int
    accepted: int  # of the tokens, drafted ones
    parts: list[Part] | None  # of the text as it is before reasoning and calls are found in it; None: not asked for


@dataclass(slots=True)
class Choice:
    """One answer as it grows."""

    index: int
    matcher: StopMatcher
    parser: ToolParser
    splitter: ThinkSplitter | None
    named_call: bool = False
    prompt_alone: bool = False
    origins: Origins | None = None
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    chances: list[TokenChances] = field(default_factory=list)
    prompt: list[TokenChances] | None = None  # of the prompt's tokens but the first
    num_tokens: int = 0
    num_chars: int = 0  # where the next token with log-probabilities begins
    end: End | None = None

    @staticmethod
    def of(job: Job, index: int, tokenizer: Tokenizer) -> "Choice":
        """An empty one."""
        matcher = StopMatcher(tokenizer, job.params.stop, min_tokens=job.params.min_tokens)
        named, alone, origins = job.named_call, job.prompt_alone, Origins() if job.parts else None
        parser, splitter = job.parser(), job.splitter()
        return Choice(index, matcher, parser, splitter, named_call=named, prompt_alone=alone, origins=origins)

    def take(self, piece: Piece) -> Fresh:
        """Take what the engine says; what is certain now."""
        if self.prompt_alone:
            piece = msgspec.structs.replace(piece, tokens=[], accepted=0, chances=None)
        for place, token in enumerate(piece.tokens):
            self.matcher.push(token)
            if self.origins is not None:
                self.origins.mark(self.matcher.num_settled, drafted=place < piece.accepted)
        raw = self.matcher.take() if piece.end is None else self.matcher.finish()
        self.end, self.num_tokens = piece.end, self.num_tokens + len(piece.tokens)
        reasoning, answer = self._split(raw)
        text, calls = self.parser.push(answer)
        if piece.end is not None:
            rest, more = self.parser.finish()
            text, calls = text + rest, calls + more
        self.text.append(text)
        self.reasoning.append(reasoning)
        self.calls += calls
        self.chances += piece.chances or []
        self.prompt = self.prompt if piece.prompt is None else piece.prompt
        return Fresh(
            text=text,
            reasoning=reasoning,
            calls=calls,
            chances=piece.chances,
            num_tokens=len(piece.tokens),
            accepted=piece.accepted,
            parts=None if self.origins is None else self.origins.take(raw),
        )

    @property
    def finish_reason(self) -> str | None:
        """As OpenAI names it; None while it goes on."""
        if self.end is None:
            return None
        if self.prompt_alone:
            return "length"
        called = bool(self.calls) and not self.named_call
        return "tool_calls" if called and self.end.finish_reason == "stop" else self.end.finish_reason

    def _split(self, raw: str) -> tuple[str, str]:
        if self.splitter is None:
            return "", raw
        reasoning, answer = self.splitter.push(raw)
        if self.end is not None:
            last_thought, last_words = self.splitter.finish()
            return reasoning + last_thought, answer + last_words
        return reasoning, answer


Answers = list[Choice]


def usage_of(job: Job, choices: Answers) -> dict[str, Any]:
    """Tokens: a prompt counts once, whatever n."""
    num_prompt = sum(len(prompt) for prompt in job.prompts)
    num_answer = sum(choice.num_tokens for choice in choices)
    firsts = choices[:: job.params.n]
    num_cached = sum(choice.end.num_cached for choice in firsts if choice.end is not None)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_answer,
        "total_tokens": num_prompt + num_answer,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def speculation_of(choices: Answers, steps: int) -> dict[str, Any]:
    """The counts of all choices together, in vLLM's wire shape."""
    ends = [choice.end for choice in choices if choice.end is not None]
    cycles, proposed, emitted = (sum(getattr(end, name) for end in ends) for name in ("cycles", "proposed", "emitted"))
    if not cycles:
        return {"speculative_decoding": None}
    accepted = emitted - cycles
    longest = max((len(end.histogram) for end in ends), default=0)
    histogram = [sum(end.histogram[place] for end in ends if place < len(end.histogram)) for place in range(longest)]
    return {
        "speculative_decoding": {
            "mean_acceptance_length": emitted / cycles,
            "draft_acceptance_rate": accepted / proposed if proposed else 0.0,
            "acceptance_histogram": histogram + [0] * (steps + 1 - longest),
            "num_spec_steps": cycles,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": proposed,
            "num_spec_tokens": steps,
        }
    }
