"""A request at the Python door: the text that belongs to it, from the prompt to the answer."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

from slipstream.config.sampling import SamplingParams
from slipstream.flow.output import Answer, Progress
from slipstream.flow.request import Request
from slipstream.serve.completion import Completion, Delta
from slipstream.text.stops import StopMatcher

Message = Mapping[str, object]


class Pending:
    """A request with the text that belongs to it."""

    __slots__ = ("matcher", "request", "text")

    def __init__(self, text: str, request: Request, matcher: StopMatcher) -> None:
        self.text, self.request, self.matcher = text, request, matcher


def completion_of(answer: Answer, pending: Pending) -> Completion:
    return Completion(
        prompt=pending.text,
        text=pending.matcher.text,
        token_ids=answer.tokens,
        finish_reason=answer.finish_reason.value,
        num_prompt_tokens=answer.num_prompt,
        seed=answer.seed,
        runs=answer.runs,
        statistics=answer.statistics,
        prefill_s=answer.prefill_s,
        decode_s=answer.decode_s,
    )


def delta_of(news: Progress, shown: StopMatcher, pending: Pending) -> Delta:
    for token in news.new_tokens:
        shown.push(token)
    text = shown.finish() if news.answer else shown.take()
    completion = completion_of(news.answer, pending) if news.answer else None
    return Delta(text=text, token_ids=news.new_tokens, accepted=news.accepted, completion=completion)


def several(conversations: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation, or several, as a list of them."""
    if all(isinstance(each, Mapping) for each in conversations):
        return [cast("Sequence[Message]", conversations)]
    return list(cast("Sequence[Sequence[Message]]", conversations))


@contextmanager
def naming(place: int, count: int) -> Iterator[None]:
    """Say which of several prompts a refusal is about, counted from 1."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"prompt {place + 1} of {count}: {error}" if count > 1 else str(error)) from None


def params_for(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise ValueError(f"{len(params)} sampling parameters came for {count} prompts; give one, or one for each")
    return list(params)
