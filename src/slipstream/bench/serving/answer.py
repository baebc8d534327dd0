"""What a streamed answer says: when its tokens came, how many, what it tells of speculation; or why there is none."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any

from slipstream.bench.serving.response import Response

DATA, END = b"data:", b"[DONE]"
TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls", "text")
WORDS = 200  # characters of a server's own words that are kept


class Reason(Enum):
    """Why a request failed."""

    UNREACHABLE = "unreachable"
    KEY = "key refused"  # 401, 403
    NOT_FOUND = "not found"  # 404
    TOO_MANY = "too many requests"  # 429
    REFUSED = "request refused"  # other 4xx, and redirections
    SERVER = "server error"  # 5xx
    STREAM = "error in stream"
    BROKEN = "broken stream"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A request without an answer."""

    reason: Reason
    sentence: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer. Times are the client's clock, seconds."""

    began_s: float
    chunk_s: tuple[float, ...]  # when each chunk with tokens came; at least one
    chunk_tokens: tuple[int, ...] | None  # tokens of each; None where the server does not say
    num_input: int | None  # as the server counts; None where it does not say
    num_output: int
    counted: bool  # whether the server said num_output; else it is the number of chunks
    finish_reason: str | None
    speculation: Mapping[str, Any] | None  # vLLM's shape: metrics.speculative_decoding
    meta: Mapping[str, Any] | None  # SGLang's meta_info, if it holds counts of speculation

    @property
    def ended_s(self) -> float:
        """When its last token came."""
        return self.chunk_s[-1]

    @property
    def first_s(self) -> float:
        """Time to the first token."""
        return self.chunk_s[0] - self.began_s

    @property
    def seconds(self) -> float:
        """From the request to its last token."""
        return self.ended_s - self.began_s

    @property
    def per_token_s(self) -> float | None:
        """Time after the first token over the tokens after it; None for a single token."""
        return None if self.num_output < 2 else (self.seconds - self.first_s) / (self.num_output - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Between chunks."""
        return [later - earlier for earlier, later in pairwise(self.chunk_s)]


def read_answer(response: Response) -> Answer | Failure:
    """What a response holds."""
    if response.status != 200:
        return _refusal(response)
    try:
        return _Stream(response).answer()
    except _NoAnswer as error:
        return _failure(response, error.reason, error.sentence)
    except (AttributeError, LookupError, TypeError, ValueError):
        return _failure(response, Reason.BROKEN, "an event holds something else where OpenAI's have text or numbers")


class _NoAnswer(Exception):
    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason, self.sentence = reason, sentence


class _Stream:
    """Gathers what the events of one answer say."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self._shown: list[float] = []  # when events with text came
        self._grown: list[tuple[float, int]] = []  # events at which the count of tokens grew: when, by how many
        self._num_tokens, self._usage = 0, dict[str, Any]()
        self._finish_reason: str | None = None
        self._speculation, self._meta = dict[str, Any](), dict[str, Any]()

    def answer(self) -> Answer:
        """All of it.

        Raises:
            _NoAnswer: the stream broke, or says that there is none.
        """
        ended = False
        for at_s, data in events(self._response):
            if data == END:
                ended = True
                break
            self._event(at_s, _object(data))
        if not ended:
            raise _NoAnswer(Reason.BROKEN, f"the stream ended without [DONE], after {len(self._shown)} chunks of text")
        total = self._usage.get("completion_tokens")
        if not self._shown and not self._grown:
            raise _NoAnswer(Reason.BROKEN, "the stream holds no tokens")
        known = self._grown and sum(tokens for _, tokens in self._grown) == total
        chunks = self._grown if known else [(at_s, 0) for at_s in self._shown or dict(self._grown)]
        return Answer(
            began_s=self._response.began_s,
            chunk_s=tuple(at_s for at_s, _ in chunks),
            chunk_tokens=tuple(tokens for _, tokens in chunks) if known else None,
            num_input=self._usage.get("prompt_tokens"),
            num_output=len(chunks) if total is None else int(total),
            counted=total is not None,
            finish_reason=self._finish_reason,
            speculation=self._speculation or None,
            meta=self._meta or None,
        )

    def _event(self, at_s: float, event: Mapping[str, Any]) -> None:
        if event.get("error"):
            raise _NoAnswer(Reason.STREAM, _words(event))
        choices = event.get("choices") or ()
        for choice in choices:
            part = choice.get("delta") or choice
            if any(part.get(name) for name in TEXTS):
                self._shown.append(at_s)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
        usage = event.get("usage")
        if usage:
            self._usage = usage
            grown = int(usage.get("completion_tokens") or 0) - self._num_tokens
            if choices and grown > 0:
                self._grown.append((at_s, grown))
                self._num_tokens += grown
        self._speculation |= (event.get("metrics") or {}).get("speculative_decoding") or {}
        for holder in (event, *choices):
            meta = holder.get("meta_info") or {}
            self._meta |= meta if "spec_verify_ct" in meta else {}


def events(response: Response) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, with the time at which its line was whole; comments are left out."""
    rest = b""
    for at_s, piece in response.pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(DATA):
                yield at_s, line[len(DATA) :].strip()
    if rest.startswith(DATA):
        yield response.ended_s, rest[len(DATA) :].strip()


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _NoAnswer(Reason.BROKEN, f"an event is no JSON object: {data[:WORDS].decode(errors='replace')}")
    return found


def _refusal(response: Response) -> Failure:
    """A status that is none of an answer, with the server's own words."""
    status = response.status
    try:
        said = _words(json.loads(response.body))
    except ValueError:
        said = response.body[:WORDS].decode(errors="replace")
    sentence = f"{status} {response.reason}".strip() + (f": {said}" if said.strip() else "")
    if 300 <= status < 400:
        sentence = f"{status}: it is elsewhere, at {response.headers.get('location', 'an unknown place')}"
    special = {401: Reason.KEY, 403: Reason.KEY, 404: Reason.NOT_FOUND, 429: Reason.TOO_MANY}
    return _failure(response, special.get(status, Reason.SERVER if status >= 500 else Reason.REFUSED), sentence)


def _failure(response: Response, reason: Reason, sentence: str) -> Failure:
    words = " ".join(sentence.split())
    return Failure(reason=reason, sentence=words, began_s=response.began_s, ended_s=response.ended_s)


def _words(body: Any) -> str:
    """The message of an error object: OpenAI's, or SGLang's flat one."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or json.dumps(error)
    return str(error)[:WORDS]
