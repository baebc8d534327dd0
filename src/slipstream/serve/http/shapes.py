"""How answers look on the wire: completions and chats, whole and in chunks."""

from itertools import accumulate
from typing import Any, Protocol

from slipstream.serve.http.job import Choice, Fresh, Job
from slipstream.serve.http.texts import Texts
from slipstream.serve.messages import Chance, Piece, TokenChances

LEAST_LOGPROB = -9999.0  # JSON has no infinity


class Shape(Protocol):
    """What /v1/completions and /v1/chat/completions differ in."""

    whole_object: str
    chunk_object: str

    def opening(self, job: Job, choice: Choice, first: Piece) -> dict[str, Any] | None:
        """A choice's chunk before its first tokens, if there is one; first: the piece that brings them."""
        ...

    def chunk(self, choice: Choice, fresh: Fresh) -> dict[str, Any]:
        """A choice's chunk for what came just now."""
        ...

    def whole(self, job: Job, choice: Choice) -> dict[str, Any]:
        """A choice that has ended."""
        ...


class CompletionShape:
    """Text."""

    whole_object = chunk_object = "text_completion"

    def __init__(self, texts: Texts) -> None:
        self._texts = texts

    def opening(self, job: Job, choice: Choice, first: Piece) -> dict[str, Any] | None:
        if not job.echoes:
            return None
        choice.num_chars = len(echo := job.echo_of(choice))
        logprobs = None if first.prompt is None else self._of_prompt(job, choice, first.prompt)
        return self._choice(choice, echo, logprobs, None)

    def chunk(self, choice: Choice, fresh: Fresh) -> dict[str, Any]:
        logprobs = None
        if fresh.chances is not None:
            logprobs = self._logprobs(fresh.chances, choice.num_chars)
            choice.num_chars += sum(map(len, logprobs["tokens"]))
        return {**self._choice(choice, fresh.text, logprobs, choice.finish_reason), **origin(fresh)}

    def whole(self, job: Job, choice: Choice) -> dict[str, Any]:
        echo = job.echo_of(choice)
        logprobs = None if job.params.logprobs is None else self._logprobs(choice.chances, len(echo))
        if logprobs is not None and choice.prompt is not None:
            before = self._of_prompt(job, choice, choice.prompt)
            logprobs = {name: before[name] + values for name, values in logprobs.items()}
        return self._choice(choice, echo + "".join(choice.text), logprobs, choice.finish_reason)

    def _choice(self, choice: Choice, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        return {"index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _of_prompt(self, job: Job, choice: Choice, chances: list[TokenChances]) -> dict[str, Any]:
        """The same of a prompt, whose first token has none: nothing comes before it."""
        prompt, found = job.prompt_of(choice), self._logprobs(chances, 0)
        return {
            "tokens": [self._texts.token_text(prompt[0]), *found["tokens"]],
            "token_logprobs": [None, *found["token_logprobs"]],
            "top_logprobs": [None, *found["top_logprobs"]],
            "text_offset": self._texts.offsets(prompt, job.echo_of(choice)),
        }

    def _logprobs(self, chances: list[TokenChances], start: int) -> dict[str, Any]:
        tokens = [self._texts.token_text(each.chosen.token) for each in chances]
        offsets = list(accumulate(map(len, tokens), initial=start))[:-1]
        return {
            "tokens": tokens,
            "token_logprobs": [finite(each.chosen.logprob) for each in chances],
            "top_logprobs": [self._top(each) for each in chances],
            "text_offset": offsets,
        }

    def _top(self, found: TokenChances) -> dict[str, float]:
        """The likeliest and the chosen one; of tokens that read alike, the chosen one or else the likeliest."""
        values: dict[str, float] = {}
        for each in (found.chosen, *found.top):
            values.setdefault(self._texts.token_text(each.token), finite(each.logprob))
        return dict(sorted(values.items(), key=lambda pair: -pair[1]))


class ChatShape:
    """Messages."""

    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(self, texts: Texts) -> None:
        self._texts = texts

    def opening(self, job: Job, choice: Choice, first: Piece) -> dict[str, Any] | None:
        return self._chunk(choice, {"role": "assistant", "content": ""}, None)

    def chunk(self, choice: Choice, fresh: Fresh) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if fresh.reasoning:
            delta["reasoning_content"] = fresh.reasoning
        if fresh.calls:
            before = len(choice.calls) - len(fresh.calls)
            delta["tool_calls"] = [call.body(before + at, streamed=True) for at, call in enumerate(fresh.calls)]
        if fresh.text or not delta:
            delta["content"] = fresh.text
        return {**self._chunk(choice, delta, fresh.chances), **origin(fresh)}

    def whole(self, job: Job, choice: Choice) -> dict[str, Any]:
        text = "".join(choice.text)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if choice.splitter is not None:
            message["reasoning_content"] = "".join(choice.reasoning).rstrip() or None
        if choice.calls:
            message["content"] = text or None
            message["tool_calls"] = [call.body(at, streamed=False) for at, call in enumerate(choice.calls)]
        logprobs = None if job.params.logprobs is None else self._logprobs(choice.chances)
        return {
            "index": choice.index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }

    def _chunk(self, choice: Choice, delta: dict[str, Any], chances: list[TokenChances] | None) -> dict[str, Any]:
        logprobs = None if chances is None else self._logprobs(chances)
        return {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": choice.finish_reason}

    def _logprobs(self, chances: list[TokenChances]) -> dict[str, Any]:
        content = [{**self._token(each.chosen), "top_logprobs": list(map(self._token, each.top))} for each in chances]
        return {"content": content, "refusal": None}

    def _token(self, chance: Chance) -> dict[str, Any]:
        return {
            "token": self._texts.token_text(chance.token),
            "logprob": finite(chance.logprob),
            "bytes": self._texts.token_bytes(chance.token),
        }


def finite(logprob: float) -> float:
    """A number that JSON can hold."""
    return max(logprob, LEAST_LOGPROB)


def origin(fresh: Fresh) -> dict[str, Any]:
    """Whose a chunk's tokens and text are, where that was asked for."""
    if fresh.parts is None:
        return {}
    parts = [{"text": part.text, "drafted": part.drafted} for part in fresh.parts]
    return {"speculation": {"tokens": fresh.num_tokens, "accepted": fresh.accepted, "parts": parts}}
